//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Udev is a second listener for udevd's events. It uses udevadm.
type Udev struct{ *Stream }

// WatchUdev starts to listen to udevd and returns when it is listening. It runs with a higher priority than other processes,
// so that it records the time of an event before another process reacts.
func (m *Machine) WatchUdev() *Udev {
	m.t.Helper()
	return m.watchUdev("chrt", "--fifo", "10")
}

// WatchUdevBeside starts a listener with normal priority, for comparison.
func (m *Machine) WatchUdevBeside() *Udev {
	m.t.Helper()
	return m.watchUdev()
}

func (m *Machine) watchUdev(prefix ...string) *Udev {
	m.t.Helper()
	s := m.Start(append(prefix, "udevadm", "monitor", "--udev")...)
	// udevadm writes the first line when it has bound its socket.
	if _, err := s.Await(0, commandTimeout, func(l Line) bool { return strings.HasPrefix(l.Text, "UDEV - ") }); err != nil {
		m.t.Fatal(err)
	}
	return &Udev{s}
}

// Event waits for an event since a mark with the given action ("add") and a sysfs path that ends in the given name
// ("nvme1n1", "0000:02:00.0"). It returns the last such event that arrived from udevd before the given time, or else the
// first one after it. The time of the returned line is the time of arrival.
func (u *Udev) Event(from int, action, name string, by time.Time) Line {
	u.m.t.Helper()
	matches := isEvent(action, name)
	first := u.await(from, action+" "+name, matches)
	for _, l := range slices.Backward(u.Lines(from)) {
		if matches(l) && !u.eventLine(l).Time.After(by) {
			return u.eventLine(l)
		}
	}
	return first
}

// Count returns the number of events with this action and name up to the line last.
func (u *Udev) Count(action, name string, last Line) int {
	u.m.t.Helper()
	n := 0
	for _, l := range u.Lines(0) {
		if isEvent(action, name)(l) && u.eventLine(l).Uptime <= last.Uptime {
			n++
		}
	}
	return n
}

// Nth waits for the nth event with this action and name. Two listeners that started at the same time return the same event.
func (u *Udev) Nth(action, name string, n int) Line {
	u.m.t.Helper()
	seen := 0
	return u.await(0, action+" "+name, func(l Line) bool {
		if isEvent(action, name)(l) {
			seen++
		}
		return seen == n
	})
}

func isEvent(action, name string) func(Line) bool {
	return func(l Line) bool {
		return strings.Contains(l.Text, "] "+action+" ") && strings.Contains(l.Text, "/"+name+" (")
	}
}

// Block waits for the first event since a mark with the action for any block device.
func (u *Udev) Block(from int, action string) Line {
	u.m.t.Helper()
	return u.await(from, action+" of a block device", func(l Line) bool {
		return strings.Contains(l.Text, "] "+action+" ") && strings.HasSuffix(l.Text, "(block)")
	})
}

func (u *Udev) await(from int, what string, match func(Line) bool) Line {
	u.m.t.Helper()
	l, err := u.Await(from, time.Minute, match)
	if err != nil {
		u.m.t.Fatalf("udev event %s: %v\nevents:\n%s", what, err, u.Text(from))
	}
	return u.eventLine(l)
}

// eventLine returns the line with the time at which udevadm received the event.
func (u *Udev) eventLine(l Line) Line {
	u.m.t.Helper()
	uptime, err := arrival(l.Text)
	if err != nil {
		u.m.t.Fatal(err)
	}
	l.Time, l.Uptime = l.Time.Add(uptime-l.Uptime), uptime
	return l
}

// arrival returns the time in a line such as
//
//	UDEV  [61.483104] add      /devices/pci0000:00/.../nvme1n1 (block)
//
// which is udevadm's timestamp in CLOCK_MONOTONIC.
func arrival(line string) (time.Duration, error) {
	_, rest, _ := strings.Cut(line, "[")
	stamp, _, _ := strings.Cut(rest, "]")
	d, err := time.ParseDuration(stamp + "s")
	if err != nil {
		return 0, fmt.Errorf("read udev event %q: %w", line, err)
	}
	return d, nil
}
