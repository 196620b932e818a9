// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"path"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// marks are the faults that events and counters report of hardware, by sysfs path, until they are cleared. They belong to
// paths and not to devices. A device that is found later in faulty hardware is Unhealthy too.
type marks map[string][]mark

// mark is a [device.Mark] that stands.
type mark struct {
	device.Mark
	spared []string // paths below for which it was cleared, sorted
}

// within reports whether a sysfs path is another one or below it.
func within(sysPath, above string) bool {
	rest, ok := strings.CutPrefix(sysPath, above)
	return ok && (rest == "" || rest[0] == '/')
}

// takesBack reports whether a mark without a reason clears those of a source.
func takesBack(m device.Mark, source string) bool {
	return m.Source == "" || m.Source == source || strings.HasPrefix(source, m.Source+"/")
}

// take adds a mark, or clears those that it takes back, and reports whether anything has changed.
func (a marks) take(m device.Mark) (changed bool) {
	if m.SysPath == "" {
		return false
	}
	if m.Reason == "" {
		return a.takeBack(m)
	}
	standing := a[m.SysPath]
	i := slices.IndexFunc(standing, func(s mark) bool { return s.Source == m.Source })
	switch {
	case i < 0:
		a[m.SysPath] = append(standing, mark{Mark: m})
	case standing[i].Mark == m && len(standing[i].spared) == 0:
		return false
	default:
		standing[i] = mark{Mark: m}
	}
	return true
}

func (a marks) takeBack(m device.Mark) (changed bool) {
	for at, standing := range a {
		before := len(standing)
		switch {
		case within(at, m.SysPath):
			standing = slices.DeleteFunc(standing, func(s mark) bool { return takesBack(m, s.Source) })
		case within(m.SysPath, at) && device.FunctionIn(m.SysPath) == m.SysPath:
			// A function is healthy again, and the bridge above it may not be. An event of another device, such as a disk that
			// was found again, has no news of the hardware.
			for i := range standing {
				changed = takesBack(m, standing[i].Source) && standing[i].spare(m.SysPath) || changed
			}
		}
		changed = changed || len(standing) != before
		if a[at] = standing; len(standing) == 0 {
			delete(a, at)
		}
	}
	return changed
}

// spare clears the mark for a path below, and reports whether it applied there.
func (m *mark) spare(sysPath string) bool {
	i, found := slices.BinarySearch(m.spared, sysPath)
	if !found {
		m.spared = slices.Insert(slices.Clone(m.spared), i, sysPath)
	}
	return !found
}

func (m *mark) spares(sysPath string) bool {
	return slices.ContainsFunc(m.spared, func(spared string) bool { return within(sysPath, spared) })
}

// of returns the faults and warnings of the hardware at a path, which are the marks on it and above it.
func (a marks) of(sysPath string) (sick, warnings []string) {
	for at := sysPath; len(at) > 1 && len(a) > 0; at = path.Dir(at) {
		for _, m := range a[at] {
			switch {
			case m.spares(sysPath):
			case m.Warning:
				warnings = append(warnings, m.Reason)
			default:
				sick = append(sick, m.Reason)
			}
		}
	}
	return sick, warnings
}

// on returns the faults and warnings of a device. They are those above it and those of the PCI functions by which it is
// reached. A faulty function counts if it is needed, or if all are faulty.
func (a marks) on(e *entry) (sick, warnings []string) {
	sick, warnings = a.of(e.device.SysPath)
	if len(a) == 0 || e.sighting == nil {
		return sick, warnings
	}
	var elsewhere []string
	for _, function := range e.sighting.Functions {
		reasons, more := a.of(function)
		warnings = append(warnings, more...)
		if len(reasons) == 0 && !e.sighting.Device.Class.NeedsAll {
			return sick, unique(warnings)
		}
		elsewhere = append(elsewhere, reasons...)
	}
	return unique(append(sick, elsewhere...)), unique(warnings)
}

func unique(texts []string) []string {
	slices.Sort(texts)
	return slices.Compact(texts)
}

// count is the value from which a counter is counted.
type count struct {
	SysPath, Name string
}

// notice takes in the news of an event about the health of hardware.
func (l *loop) notice(e udev.Event) {
	if m, ok := device.Notice(e); ok {
		l.mark(m)
	}
}

// mark takes in a mark and queues a judgement of the devices that it concerns.
func (l *loop) mark(m device.Mark) {
	if m.Source == "" { // the next look gives the new start of the counters
		for _, name := range []string{device.FatalErrors, device.NonfatalErrors} {
			delete(l.counted, count{m.SysPath, name})
		}
	}
	if !l.marks.take(m) {
		return
	}
	l.saveSoon()
	for _, e := range l.entries {
		concerned := within(e.device.SysPath, m.SysPath) || e.sighting != nil &&
			slices.ContainsFunc(e.sighting.Functions, func(f string) bool { return within(f, m.SysPath) })
		if concerned {
			l.changed(e)
		}
	}
}

// recovered clears the faults of devices without an event.
func (l *loop) recovered(ids []string) {
	for _, id := range ids {
		e := l.entries[id]
		if e == nil {
			continue
		}
		l.mark(device.Mark{SysPath: e.device.SysPath})
		if e.sighting != nil {
			for _, function := range e.sighting.Functions {
				l.mark(device.Mark{SysPath: function})
			}
		}
		l.lookAgain([]string{id})
	}
}

// count takes in the counters of a look. The next values are compared with the first. A lower one shows that the hardware is
// another, or was reset.
func (l *loop) count(counters []device.Counter) {
	for _, c := range counters {
		key := count{c.SysPath, c.Name}
		before, known := l.counted[key]
		switch {
		case !known, c.Value < before:
			l.counted[key] = c.Value
			l.saveSoon()
			l.mark(device.Mark{SysPath: c.SysPath, Source: c.Name})
		case c.Value > before:
			l.mark(c.Mark(before))
		}
	}
}
