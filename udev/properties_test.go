// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"maps"
	"strings"
	"testing"
)

func TestProperties(t *testing.T) {
	all := map[string]string{"ID_PATH": "pci-0000:01:00.0", "ID_PATH_TAG": "x", "ID_PATH2": "y", "EMPTY": "", "A": "B=C"}
	p := NewProperties(all)
	for key, want := range map[string]string{
		"ID_PATH": "pci-0000:01:00.0", "ID_PATH_TAG": "x", "ID_PATH2": "y", "EMPTY": "", "A": "B=C", "ID": "-", "ID_PATH_": "-", "B": "-",
		"": "-", "C": "-", "A=B": "-",
	} {
		value, ok := p.Lookup(key)
		if !ok {
			value = "-"
		}
		if value != want || p.Value(key) != strings.TrimPrefix(want, "-") {
			t.Errorf("%q is %q, not %q", key, value, want)
		}
	}
	if got := maps.Collect(p.All()); !maps.Equal(got, all) {
		t.Errorf("all %v, want %v", got, all)
	}
	for key := range p.All() {
		if key != "A" {
			t.Errorf("%q comes first", key)
		}
		break
	}
}

// Two are the same exactly if they say the same, in whatever order it was told.
func TestPropertiesCompare(t *testing.T) {
	p := NewProperties(map[string]string{"A": "1", "B": "2"})
	for name, c := range map[string]struct {
		other Properties
		same  bool
	}{
		"itself":            {p, true},
		"one set again":     {p.With("B", "2"), true},
		"one more and less": {NewProperties(map[string]string{"A": "1"}).With("B", "2"), true},
		"another value":     {p.With("B", "3"), false},
		"one more":          {p.With("C", ""), false},
		"one less":          {NewProperties(map[string]string{"A": "1"}), false},
		"none":              {Properties{}, false},
	} {
		if (c.other == p) != c.same {
			t.Errorf("%s: %v and %v", name, p, c.other)
		}
	}
	if p := NewProperties(map[string]string{"DEVPATH": "/devices/x"}); p != (Properties{}) {
		t.Errorf("the path is in %v", p)
	}
	if NewProperties(nil) != (Properties{}) || (Properties{}).With("A", "1").With("B", "2") != p {
		t.Error("none and more")
	}
}

// No read makes garbage: rules and classes ask for many properties of each device.
func TestLookupAllocates(t *testing.T) {
	p := NewProperties(map[string]string{"A": "1", "B": "2", "C": "3"})
	if n := testing.AllocsPerRun(100, func() { p.Lookup("C"); p.Value("D") }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
