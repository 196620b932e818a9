// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"fmt"
	"path"
	"strings"
)

// widget is a device that only exists in a recording.
type widget struct {
	n    int    // the number in /dev/widgetN and in the serial WN
	numa int    // NUMA node, or negative for none
	kind string // kind of device, which is a part of the resource's name; empty means "widget"
	slot int    // the slot of its parent PCI function, or zero for no parent
	sick bool   // the PCI function does not answer
}

// resource returns the extended resource under which the daemon offers this kind of widget.
func (w widget) resource() string {
	if w.kind == "" {
		return "example.org/widget"
	}
	return "example.org/" + w.kind
}

// id returns the ID of the widget in the kubelet's list.
func (w widget) id() string {
	kind := strings.TrimPrefix(w.resource(), "example.org/")
	return fmt.Sprintf("node-%s-W%d-%s", kind, w.n, kind)
}

// majors has the major number of each kind, because the kernel gives a device number to one device only.
var majors = map[string]int{"widget": 240, "sprocket": 241, "gear": 242}

// block returns the widget in the format of umockdev-record.
func (w widget) block() string {
	kind := strings.TrimPrefix(w.resource(), "example.org/")
	above, config := "virtual", "8680112233445566"
	if w.sick {
		config = "ffffffffffffffff" // the result of each read after the function was removed from the bus
	}
	var b strings.Builder
	if w.slot > 0 {
		above = fmt.Sprintf("pci0000:00/0000:00:%02x.0", w.slot)
		fmt.Fprintf(&b, "P: /devices/%s\nE: SUBSYSTEM=pci\nE: PCI_SLOT_NAME=%s\nH: config=%s\n\n", above, path.Base(above), config)
	}
	fmt.Fprintf(&b, "P: /devices/%s/%s/%s%d\n", above, kind, kind, w.n)
	fmt.Fprintf(&b, "N: %s%d\n", kind, w.n)
	fmt.Fprintf(&b, "S: %s/by-id/%s-W%d\n", kind, kind, w.n)
	fmt.Fprintf(&b, "E: DEVNAME=/dev/%s%d\nE: SUBSYSTEM=%s\n", kind, w.n, kind)
	fmt.Fprintf(&b, "E: MAJOR=%d\nE: MINOR=%d\nE: ID_SERIAL=%s-W%d\nE: ID_SERIAL_SHORT=W%d\n", majors[kind], w.n, kind, w.n, w.n)
	fmt.Fprintf(&b, "A: dev=%d:%d\\n\n", majors[kind], w.n)
	if w.numa >= 0 {
		fmt.Fprintf(&b, "A: numa_node=%d\\n\n", w.numa)
	}
	return b.String()
}

// recordingOf returns the recording of a machine with these widgets.
func recordingOf(widgets []widget) string {
	blocks := []string{"# written by a test\nF: /proc/sys/kernel/random/boot_id=one\\n\n"}
	for _, w := range widgets {
		blocks = append(blocks, w.block())
	}
	return strings.Join(blocks, "\n")
}

// plain returns the widgets 0 to n-1 without a NUMA node.
func plain(n int) []widget {
	list := make([]widget, n)
	for i := range list {
		list[i] = widget{n: i, numa: -1}
	}
	return list
}

// aligned returns the widgets 0 to n-1, alternately on NUMA nodes 0 and 1.
func aligned(n int) []widget {
	list := plain(n)
	for i := range list {
		list[i].numa = i % 2
	}
	return list
}
