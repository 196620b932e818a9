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

// numbers returns the numbers of the nodes that lead to the device, for example "block 259:1". The device's own node comes first,
// and then an NVMe namespace's generic node. If the device is absent, there are no numbers.
func (e *entry) numbers() []string {
	u := e.device.Udev
	if e.sighting == nil || u == nil || u.Properties.Value("MAJOR") == "" {
		return nil
	}
	kind := "char "
	if u.Subsystem == "block" {
		kind = "block "
	}
	all := []string{kind + u.Properties.Value("MAJOR") + ":" + u.Properties.Value("MINOR")}
	if e.device.Generic != "" {
		all = append(all, "char "+e.device.Generic)
	}
	return all
}

// noteNumbers records the numbers that a device's pods may open, while pods hold it. After the last pod has ended, noteNumbers
// deletes these numbers. Other devices that now have one of these numbers can then be offered.
func (d *devices) noteNumbers(e *entry) {
	if e.lease.Held() {
		given := e.numbers()
		if r := d.rule(e.resource); len(given) > 1 && r != nil && (r.Nodes == "" || r.Nodes == device.NVMeBlock) {
			given = given[:1]
		}
		e.Numbers = slices.Compact(slices.Sorted(slices.Values(slices.Concat(e.Numbers, given))))
		d.addNumbers(e)
		return
	}
	for _, n := range e.Numbers {
		for _, other := range d.entries {
			if other != e && slices.Contains(other.numbers(), n) {
				d.queueVerdict(other)
			}
		}
	}
	e.Numbers = nil
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
	for _, n := range e.numbers() {
		for _, other := range d.granted[n] {
			if other != e && slices.Contains(other.Numbers, n) {
				return fmt.Errorf("%w: the pod of %s can still open it, because the kernel reused the device number %s; delete that pod",
					device.ErrInUse, other.device.ID, n)
			}
		}
	}
	return nil
}
