// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"slices"

	"github.com/metalplug/metalplug/daemon/device"
)

// A container may open any device with a granted device number until the container ends
// (Documentation/admin-guide/cgroup-v1/devices.rst; cgroup v2 does the same with BPF). The kernel reuses the number of an
// unplugged device for the next device. As a result, a pod that had the old device can open the new device.

// number returns the number of the device node, for example "block 259:1", or "" if the device is absent.
func (e *entry) number() string {
	u := e.device.Udev
	if e.sighting == nil || u == nil || u.Properties.Value("MAJOR") == "" {
		return ""
	}
	kind := "char "
	if u.Subsystem == "block" {
		kind = "block "
	}
	return kind + u.Properties.Value("MAJOR") + ":" + u.Properties.Value("MINOR")
}

// noteNumber records a device's numbers while pods hold it. After the last pod has ended, noteNumber deletes these numbers. Other
// devices that now have one of these numbers can then be offered.
func (d *devices) noteNumber(e *entry) {
	n := e.number()
	switch {
	case e.lease.Held() && n != "" && !slices.Contains(e.Numbers, n):
		e.Numbers = append(slices.Clip(e.Numbers), n)
		d.addNumbers(e)
	case !e.lease.Held() && len(e.Numbers) > 0:
		before := e.Numbers
		e.Numbers = nil
		for _, other := range d.entries {
			if other != e && slices.Contains(before, other.number()) {
				d.queueVerdict(other)
			}
		}
	}
}

// addNumbers adds a device to the map granted under each of its numbers.
func (d *devices) addNumbers(e *entry) {
	for _, n := range e.Numbers {
		others := slices.DeleteFunc(d.granted[n], func(o *entry) bool { return o == e || len(o.Numbers) == 0 })
		d.granted[n] = append(others, e)
	}
}

// checkOpened returns an error if the pod of another device can open this device. If so, the device cannot be offered.
// checkOpened ignores the pod that holds this device. The kubelet may already know that this pod has ended.
func (d *devices) checkOpened(e *entry) error {
	if len(d.granted) == 0 {
		return nil
	}
	n := e.number()
	for _, other := range d.granted[n] {
		if other != e && slices.Contains(other.Numbers, n) {
			return fmt.Errorf("%w: the pod of %s can still open it, because the kernel reused the device number %s; delete that pod",
				device.ErrInUse, other.device.ID, n)
		}
	}
	return nil
}
