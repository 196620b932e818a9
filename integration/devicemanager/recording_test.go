// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"fmt"
	"strings"
)

// widget is a device that only exists in a recording.
type widget struct {
	n    int    // names it: /dev/widgetN, serial WN
	numa int    // of its NUMA node; none if negative
	kind string // the middle of the resource's name; "widget" if empty
}

// resource is the extended resource that the configuration of a daemon makes
// of a kind of widget.
func (w widget) resource() string {
	if w.kind == "" {
		return "example.org/widget"
	}
	return "example.org/" + w.kind
}

// block is the widget in the format of umockdev-record.
func (w widget) block() string {
	kind := strings.TrimPrefix(w.resource(), "example.org/")
	var b strings.Builder
	fmt.Fprintf(&b, "P: /devices/virtual/%s/%s%d\n", kind, kind, w.n)
	fmt.Fprintf(&b, "N: %s%d\n", kind, w.n)
	fmt.Fprintf(&b, "S: %s/by-id/%s-W%d\n", kind, kind, w.n)
	fmt.Fprintf(&b, "E: DEVNAME=/dev/%s%d\nE: SUBSYSTEM=%s\n", kind, w.n, kind)
	fmt.Fprintf(&b, "E: MAJOR=240\nE: MINOR=%d\nE: ID_SERIAL=%s-W%d\nE: ID_SERIAL_SHORT=W%d\n", w.n, kind, w.n, w.n)
	fmt.Fprintf(&b, "A: dev=240:%d\\n\n", w.n)
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
