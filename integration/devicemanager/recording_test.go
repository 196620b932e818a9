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
	numa int    // its NUMA node, or negative for none
	kind string // the middle of the resource's name, "widget" if empty
	slot int    // the slot of its parent PCI function, or zero for no parent
	sick bool   // that function does not answer
}

// resource is the extended resource that the configuration of a daemon makes
// of a kind of widget.
func (w widget) resource() string {
	if w.kind == "" {
		return "example.org/widget"
	}
	return "example.org/" + w.kind
}

// id is the widget's in the kubelet's list.
func (w widget) id() string {
	kind := strings.TrimPrefix(w.resource(), "example.org/")
	return fmt.Sprintf("node-%s-W%d-%s", kind, w.n, kind)
}

// majors are the major numbers of the kinds. The kernel gives a number to one device at a time.
var majors = map[string]int{"widget": 240, "sprocket": 241, "gear": 242}

// block is the widget in the format of umockdev-record.
func (w widget) block() string {
	kind := strings.TrimPrefix(w.resource(), "example.org/")
	above, config := "virtual", "8680112233445566"
	if w.sick {
		config = "ffffffffffffffff" // what each read gives after the function has fallen off the bus
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

// recordingOf is the text of a machine with these widgets.
func recordingOf(widgets []widget) string {
	blocks := []string{"# written by a test\n"}
	for _, w := range widgets {
		blocks = append(blocks, w.block())
	}
	return strings.Join(blocks, "\n")
}

// plain are widgets 0..n-1 without a NUMA node.
func plain(n int) []widget {
	list := make([]widget, n)
	for i := range list {
		list[i] = widget{n: i, numa: -1}
	}
	return list
}

// aligned are widgets 0..n-1, in turn on NUMA nodes 0 and 1.
func aligned(n int) []widget {
	list := plain(n)
	for i := range list {
		list[i].numa = i % 2
	}
	return list
}
