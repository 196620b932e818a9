// SPDX-License-Identifier: Apache-2.0

// Package fault records the hardware faults that events and error counters report, and keeps them until they are cleared. The
// package also keeps a device Unhealthy if it fails repeatedly.
package fault

import (
	"maps"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
)

// Record contains the faults in all hardware on the node. A reboot resets the hardware, so a record is valid only until the next
// boot. A fault belongs to a sysfs path rather than to a device. If another device is later found at the same path, that device
// is Unhealthy too. The zero value has no faults.
type Record struct {
	Boot string `json:"boot,omitempty"`
	// Marks contains the faults and warnings that have not been completely cleared, oldest first.
	Marks []mark `json:"marks,omitempty"`
	// Counters contains the base value of each error counter. A counter above its base value is a fault or a warning. A key consists
	// of the sysfs path and the counter's name.
	Counters map[string]uint64 `json:"counters,omitempty"`
}

// mark is a [device.Mark] that has not been cleared, or has been cleared only for some paths.
type mark struct {
	device.Mark
	// The mark no longer applies to hardware at or below the paths in Cleared.
	Cleared []string `json:"cleared,omitempty"`
}

// Clone returns an independent copy of the record.
func (r *Record) Clone() Record {
	return Record{Boot: r.Boot, Marks: slices.Clone(r.Marks), Counters: maps.Clone(r.Counters)}
}

// Within reports whether the first path is the same as the second, or below it.
func Within(sysPath, above string) bool {
	rest, ok := strings.CutPrefix(sysPath, above)
	return ok && (rest == "" || rest[0] == '/')
}

func counterKey(sysPath, name string) string { return sysPath + " " + name }

// Take adds the mark m. If m has no reason, Take clears marks instead. Take reports whether the record has changed.
func (r *Record) Take(m device.Mark) (changed bool) {
	if m.Source == "" { // the next inspection sets new base values for the counters
		delete(r.Counters, counterKey(m.SysPath, device.FatalErrors))
		delete(r.Counters, counterKey(m.SysPath, device.NonfatalErrors))
	}
	switch {
	case m.SysPath == "":
		return false
	case m.Reason == "":
		return r.clear(m)
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

// clear clears the marks at the path of m and below it. If a PCI function has recovered, a mark on a bridge above it still
// applies to all other functions below the bridge, but no longer to that function. Other hardware, such as a disk that has
// reappeared, does not prove that the bridge has recovered, so the mark still applies to it.
func (r *Record) clear(m device.Mark) (changed bool) {
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

// Count compares an error counter with its base value and reports whether a mark has changed. The first value becomes the base
// value. If a value is lower than the base value, the hardware was replaced or reset, and this value becomes the new base value.
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

// faultsAt returns the faults in and warnings about the hardware at a path, from the marks at that path and above it.
func (r *Record) faultsAt(sysPath string) (faults, warnings []string) {
	for _, m := range r.Marks {
		cleared := func(path string) bool { return Within(sysPath, path) }
		switch {
		case !Within(sysPath, m.SysPath), slices.ContainsFunc(m.Cleared, cleared):
		case m.Warning:
			warnings = append(warnings, m.Reason)
		default:
			faults = append(faults, m.Reason)
		}
	}
	return faults, warnings
}

// Lookup returns the sorted faults in and warnings about a device at a sysfs path. They come from the marks for this path and for
// the PCI functions that lead to the device. The result includes faults in these functions only if needsAll is true or all of the
// functions are faulty.
func (r *Record) Lookup(sysPath string, functions []string, needsAll bool) (faults, warnings []string) {
	if len(r.Marks) == 0 {
		return nil, nil
	}
	faults, warnings = r.faultsAt(sysPath)
	var elsewhere []string
	for _, function := range functions {
		reasons, more := r.faultsAt(function)
		warnings = append(warnings, more...)
		if len(reasons) == 0 && !needsAll {
			elsewhere = nil
			break
		}
		elsewhere = append(elsewhere, reasons...)
	}
	return unique(append(faults, elsewhere...)), unique(warnings)
}

func unique(texts []string) []string {
	slices.Sort(texts)
	return slices.Compact(texts)
}
