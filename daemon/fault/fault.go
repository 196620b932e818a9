// SPDX-License-Identifier: Apache-2.0

// Package fault records the faults that events and error counters report of hardware, until they are cleared. It also keeps
// a device back that fails again and again.
package fault

import (
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
)

// Record has the faults of all hardware. It applies in one boot, since the next boot resets the hardware. Faults belong to
// sysfs paths and not to devices. A device that is found later in faulty hardware is Unhealthy too. The zero value has none.
type Record struct {
	Boot string `json:"boot,omitempty"`
	// Marks stand until they are cleared, in the order in which they came.
	Marks []mark `json:"marks,omitempty"`
	// Counters are the values from which error counters are counted, by sysfs path and name.
	Counters map[string]uint64 `json:"counters,omitempty"`
}

// mark is a [device.Mark] that stands.
type mark struct {
	device.Mark
	// Cleared are paths below for which it does not stand any more.
	Cleared []string `json:"cleared,omitempty"`
}

// Within reports whether a sysfs path is another one or below it.
func Within(sysPath, above string) bool {
	rest, ok := strings.CutPrefix(sysPath, above)
	return ok && (rest == "" || rest[0] == '/')
}

func counterKey(sysPath, name string) string { return sysPath + " " + name }

// Take adds a mark, or clears those that it takes back, and reports whether anything has changed.
func (r *Record) Take(m device.Mark) (changed bool) {
	if m.Source == "" { // the next look gives the new start of the counters
		delete(r.Counters, counterKey(m.SysPath, device.FatalErrors))
		delete(r.Counters, counterKey(m.SysPath, device.NonfatalErrors))
	}
	switch {
	case m.SysPath == "":
		return false
	case m.Reason == "":
		return r.takeBack(m)
	}
	i := slices.IndexFunc(r.Marks, func(s mark) bool { return s.SysPath == m.SysPath && s.Source == m.Source })
	switch {
	case i < 0:
		r.Marks = append(r.Marks, mark{Mark: m})
	case r.Marks[i].Mark == m && len(r.Marks[i].Cleared) == 0:
		return false
	default:
		r.Marks[i] = mark{Mark: m}
	}
	return true
}

// takeBack clears the marks at the path of m and below it. A function may be healthy again while the bridge above it is not. Then
// a mark of the bridge stands for the others. An event of another device, such as a disk that was found again, has no news
// of the hardware.
func (r *Record) takeBack(m device.Mark) (changed bool) {
	before := len(r.Marks)
	concerns := func(s mark) bool {
		return m.Source == "" || m.Source == s.Source || strings.HasPrefix(s.Source, m.Source+"/")
	}
	r.Marks = slices.DeleteFunc(r.Marks, func(s mark) bool { return Within(s.SysPath, m.SysPath) && concerns(s) })
	isFunction := device.FunctionIn(m.SysPath) == m.SysPath
	for i := range r.Marks {
		s := &r.Marks[i]
		if isFunction && Within(m.SysPath, s.SysPath) && concerns(*s) && !slices.Contains(s.Cleared, m.SysPath) {
			s.Cleared, changed = append(s.Cleared, m.SysPath), true
		}
	}
	return changed || len(r.Marks) != before
}

// Count takes in an error counter, and reports whether a mark has changed. Later values are compared with the first. A lower one
// shows that the hardware is another, or was reset.
func (r *Record) Count(c device.Counter) (changed bool) {
	key := counterKey(c.SysPath, c.Name)
	before, known := r.Counters[key]
	switch {
	case !known, c.Value < before:
		if r.Counters == nil {
			r.Counters = make(map[string]uint64)
		}
		r.Counters[key] = c.Value
		return r.Take(device.Mark{SysPath: c.SysPath, Source: c.Name})
	case c.Value > before:
		return r.Take(c.Mark(before))
	}
	return false
}

// of returns the faults and warnings of the hardware at a path, which are the marks on it and above it.
func (r *Record) of(sysPath string) (sick, warnings []string) {
	for _, m := range r.Marks {
		cleared := func(path string) bool { return Within(sysPath, path) }
		switch {
		case !Within(sysPath, m.SysPath), slices.ContainsFunc(m.Cleared, cleared):
		case m.Warning:
			warnings = append(warnings, m.Reason)
		default:
			sick = append(sick, m.Reason)
		}
	}
	return sick, warnings
}

// On returns the faults and warnings of a device at a sysfs path, sorted. They are those of its path and those of the PCI
// functions by which it is reached. A faulty function counts if needsAll is set, or if all are faulty.
func (r *Record) On(sysPath string, functions []string, needsAll bool) (sick, warnings []string) {
	if len(r.Marks) == 0 {
		return nil, nil
	}
	sick, warnings = r.of(sysPath)
	var elsewhere []string
	for _, function := range functions {
		reasons, more := r.of(function)
		warnings = append(warnings, more...)
		if len(reasons) == 0 && !needsAll {
			elsewhere = nil
			break
		}
		elsewhere = append(elsewhere, reasons...)
	}
	return unique(append(sick, elsewhere...)), unique(warnings)
}

func unique(texts []string) []string {
	slices.Sort(texts)
	return slices.Compact(texts)
}
