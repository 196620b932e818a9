// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"slices"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/fault"
)

// count records the faults that the error counters from an inspection show.
func (d *devices) count(counters []device.Counter) {
	for _, c := range counters {
		d.saveLater()
		if d.faults.Count(c) {
			d.judgeIn(c.SysPath)
		}
	}
}

// judgeIn queues a new verdict for the devices below a sysfs path. The caller has changed the faults of this path.
func (d *devices) judgeIn(sysPath string) {
	d.saveLater()
	for _, e := range d.entries {
		if slices.ContainsFunc(e.paths(), func(path string) bool { return fault.Within(path, sysPath) }) {
			d.queueVerdict(e)
		}
	}
}

// functions returns the sysfs paths of the PCI functions of a device.
func (e *entry) functions() []string {
	if e.sighting == nil {
		return nil
	}
	return e.sighting.Functions
}

// paths returns the sysfs paths of a device and of its PCI functions.
func (e *entry) paths() []string { return append([]string{e.device.SysPath}, e.functions()...) }

// clearFaults clears the faults of a device immediately, without waiting for an event.
func (l *loop) clearFaults(e *entry) {
	for _, path := range e.paths() {
		if l.faults.Take(device.Mark{SysPath: path}) {
			l.judgeIn(path)
		}
	}
	l.inspect(e)
}
