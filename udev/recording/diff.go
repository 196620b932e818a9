// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/udev"
)

// Update turns the tree below root, which r has written, into that of another recording, and returns the events of the
// difference in the order in which udevd would send them: what went, children before their parents; what came, parents
// before their children; what changed. The tree is as the events say before they are returned. A change of what is
// mounted is the event [udev.Mounts], of another file that belongs to no device [udev.Overflow].
//
// After an error the tree may be neither the one nor the other.
func (r *Recording) Update(root string, to *Recording) ([]udev.Event, error) {
	before, err := r.tree()
	if err != nil {
		return nil, err
	}
	after, err := to.tree()
	if err != nil {
		return nil, err
	}
	if err := apply(root, before, after); err != nil {
		return nil, err
	}
	return r.events(to), nil
}

func (r *Recording) events(to *Recording) []udev.Event {
	now := time.Now()
	var events []udev.Event
	send := func(action string, d udev.Device) {
		events = append(events, udev.Event{Action: action, Device: d, Received: now})
	}
	before, after := r.byPath(), to.byPath()
	for _, d := range slices.Backward(r.devices) {
		if after[d.path] == nil {
			send("remove", d.Device)
		}
	}
	var changed []*device
	for _, d := range to.devices {
		switch old := before[d.path]; {
		case old == nil:
			send("add", d.Device)
		case !old.equal(d):
			changed = append(changed, d)
		}
	}
	for _, d := range changed {
		send("change", d.Device)
	}
	mounts, other := filesChanged(r.files, to.files)
	if mounts {
		send(udev.Mounts, udev.Device{})
	}
	if other {
		send(udev.Overflow, udev.Device{})
	}
	return events
}

// equal tells whether nothing changed but the place in the text.
func (d *device) equal(o *device) bool {
	if d == o {
		return true
	}
	return d.uevent == o.uevent && d.node == o.node && d.content == o.content && slices.Equal(d.links, o.links) &&
		d.Properties == o.Properties &&
		slices.EqualFunc(d.attrs, o.attrs, func(a, b attr) bool {
			return a.name == b.name && a.value == b.value && a.link == b.link
		})
}

// filesChanged compares what F: says: the files that list mounts and swaps, and all others.
func filesChanged(before, after []file) (mounts, other bool) {
	texts := make(map[string]string, len(before))
	for _, f := range before {
		texts[f.path] = f.text
	}
	note := func(name string) {
		if listsMounts(name) {
			mounts = true
		} else {
			other = true
		}
	}
	for _, f := range after {
		if text, ok := texts[f.path]; !ok || text != f.text {
			note(f.path)
		}
		delete(texts, f.path)
	}
	for name := range texts {
		note(name)
	}
	return mounts, other
}

func listsMounts(name string) bool {
	return name == "/proc/swaps" || strings.HasPrefix(name, "/proc/") && strings.HasSuffix(name, "/mountinfo")
}
