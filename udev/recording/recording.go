// SPDX-License-Identifier: Apache-2.0

// Package recording simulates another machine's hardware from a text in umockdev-record's format.
//
// A recording is a list of blocks, one for each device, separated by blank lines:
//
//	P: /devices/pci0000:00/0000:00:02.0/nvme/nvme0     begins a device: its path below /sys
//	N: nvme0                                           its node below /dev
//	S: disk/by-id/nvme-abc                             another name of the node, a link below /dev
//	E: SUBSYSTEM=nvme                                  a property of udev's
//	A: model=Blank Disk\n                              an attribute: a file in sysfs, escaped as in C
//	H: config=86800A54                                 an attribute that is not text
//	L: driver=../../../bus/pci/drivers/nvme            an attribute that is a link
//	# a comment
//
// Lines of two other forms, which umockdev does not know, may be anywhere:
//
//	F: /proc/swaps=Filename\tType\n                    a file below /proc or /dev that belongs to no device
//	F: /proc/4242/                                     a directory there
//
// The other lines that udevadm exports (M, R, J, U, T, D, I, Q, V, B and link priorities) repeat information from the properties.
// Parse ignores these lines. Parse also ignores DEVPATH, and a node's contents in a line N. Unlike in umockdev, a path may also
// begin with /module/.
//
// The package does not invent data. An attribute that is missing from a recording, such as a NUMA node, is also missing from the
// tree. The package adds only the files and links that sysfs and udev derive from other data. These files and links are uevent,
// dev, the links to the subsystem, class, bus, driver and IOMMU group, and the links in /dev/block and /dev/char.
package recording

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/udev"
)

// Recording is a parsed recording. Recording is immutable and safe for concurrent use.
type Recording struct {
	devices map[string]device // keys are sysfs paths
	files   map[string]bool   // names of tree entries that belong to no device
	tree    tree
}

// device is one block of a recording. The strings in the embedded Device do not share memory with the parsed text.
type device struct {
	udev.Device
	text string // text of the block
}

// Devices returns the recording's devices, with parents before their children.
func (r *Recording) Devices() []udev.Device {
	devices := make([]udev.Device, 0, len(r.devices))
	for _, path := range r.paths() {
		devices = append(devices, r.devices[path].Device)
	}
	return devices
}

// paths returns the devices' paths, with parents before their children.
func (r *Recording) paths() []string { return slices.Sorted(maps.Keys(r.devices)) }

// Write creates the recording's tree in root/sys, root/dev and root/proc. Write creates the directory root if it does not exist.
// The directory should be empty.
func (r *Recording) Write(root string) error { return apply(root, nil, r.tree) }

// Update replaces the tree below root, which r must have written there, with the tree of another recording. Update returns events
// for the differences, in the order that udevd would use. Removals come first, with children before their parents. Additions
// follow, with parents before their children. Changes come last. The tree is complete when Update returns. If a mount or swap
// table has changed, there is an event [udev.Mounts]. If another file that belongs to no device has changed, there is an event
// [udev.Overflow].
//
// After an error, the tree may be a mixture of both recordings.
func (r *Recording) Update(root string, to *Recording) ([]udev.Event, error) {
	if err := apply(root, r.tree, to.tree); err != nil {
		return nil, err
	}
	var events, changed []udev.Event
	now := time.Now()
	for _, path := range slices.Backward(r.paths()) {
		if _, ok := to.devices[path]; !ok {
			events = append(events, udev.Event{Action: "remove", Device: r.devices[path].Device, Received: now})
		}
	}
	for _, path := range to.paths() {
		d := to.devices[path]
		if before, ok := r.devices[path]; !ok {
			events = append(events, udev.Event{Action: "add", Device: d.Device, Received: now})
		} else if before.text != d.text {
			changed = append(changed, udev.Event{Action: "change", Device: d.Device, Received: now})
		}
	}
	events = append(events, changed...)
	files := maps.Clone(r.files)
	maps.Copy(files, to.files)
	actions := make(map[string]bool)
	for name := range files {
		switch {
		case r.tree[name] == to.tree[name]:
		case name == "proc/swaps" || strings.HasSuffix(name, "/mountinfo"):
			actions[udev.Mounts] = true
		default:
			actions[udev.Overflow] = true
		}
	}
	for _, action := range slices.Sorted(maps.Keys(actions)) {
		events = append(events, udev.Event{Action: action, Received: now})
	}
	return events, nil
}
