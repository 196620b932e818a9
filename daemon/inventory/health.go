// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
)

// health is the record of marks and counters. It applies in one boot, since the next boot resets all hardware.
type health struct {
	Boot   string        `json:"boot,omitempty"`
	Marks  []markRecord  `json:"marks,omitempty"`
	Counts []countRecord `json:"counts,omitempty"`
}

type markRecord struct {
	SysPath string   `json:"sysfsPath"`
	Source  string   `json:"source"`
	Reason  string   `json:"reason"`
	Warning bool     `json:"warning,omitempty"`
	Spared  []string `json:"spared,omitempty"`
}

type countRecord struct {
	SysPath string `json:"sysfsPath"`
	Name    string `json:"name"`
	Value   uint64 `json:"value"`
}

// restoreHealth takes in marks and counters of the last run, unless the node was booted since.
func (l *loop) restoreHealth(h health) {
	if boot, err := l.Host.Read("/proc/sys/kernel/random/boot_id"); err == nil {
		l.boot = boot
	}
	if h.Boot != l.boot {
		return
	}
	for _, r := range h.Marks {
		m := device.Mark{SysPath: r.SysPath, Source: r.Source, Reason: r.Reason, Warning: r.Warning}
		l.marks[r.SysPath] = append(l.marks[r.SysPath], mark{m, r.Spared})
	}
	for _, r := range h.Counts {
		l.counted[count{r.SysPath, r.Name}] = r.Value
	}
}

// savedHealth returns the record of marks and counters.
func (l *loop) savedHealth() health {
	h := health{Boot: l.boot}
	for _, at := range slices.Sorted(maps.Keys(l.marks)) {
		for _, m := range l.marks[at] {
			spared := slices.Clone(m.spared) // the store reads it beside the loop
			h.Marks = append(h.Marks, markRecord{m.SysPath, m.Source, m.Reason, m.Warning, spared})
		}
	}
	for key, value := range l.counted {
		h.Counts = append(h.Counts, countRecord{key.SysPath, key.Name, value})
	}
	slices.SortFunc(h.Counts, func(a, b countRecord) int {
		return strings.Compare(a.SysPath+" "+a.Name, b.SysPath+" "+b.Name)
	})
	return h
}
