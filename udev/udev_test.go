// SPDX-License-Identifier: Apache-2.0

package udev_test

import (
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/leak"
	"github.com/metalplug/metalplug/udev"
)

func TestGlob(t *testing.T) {
	for _, test := range []struct {
		pattern, value string
		want           bool
	}{
		{"10DE:*", "10DE:20B0", true},
		{"10DE:*", "1002:20B0", false},
		{"*", "", true},
		{"", "", true},
		{"/dev/*", "/dev/dri/card0", true},
		{"3*|12*", "120000", true},
		{"3*|12*", "20000", false},
		{"[0-9]?", "7x", true},
		{"[", "[", false},
	} {
		if got := udev.Glob(test.pattern, test.value); got != test.want {
			t.Errorf("Glob(%q, %q) is %t", test.pattern, test.value, got)
		}
	}
	if udev.CheckGlob("a|[") == nil || udev.CheckGlob("a|[b]*") != nil {
		t.Error("CheckGlob")
	}
}

func TestMatches(t *testing.T) {
	d := udev.Device{Subsystem: "pci", DevType: "x", SysPath: "/sys/devices/pci0000:00/0000:00:01.0", Properties: udev.NewProperties(map[string]string{"PCI_CLASS": "30200", "DRIVER": "nvidia"})}
	for name, test := range map[string]struct {
		match udev.Match
		want  bool
	}{
		"subsystem":        {udev.Match{Subsystem: "pci", DevType: "x"}, true},
		"other subsystem":  {udev.Match{Subsystem: "usb"}, false},
		"other type":       {udev.Match{DevType: "y"}, false},
		"properties":       {udev.Match{Properties: map[string]string{"PCI_CLASS": "302*", "DRIVER": "*"}}, true},
		"path":             {udev.Match{Properties: map[string]string{"DEVPATH": "/devices/pci*", "DRIVER": "*"}}, true},
		"another path":     {udev.Match{Properties: map[string]string{"DEVPATH": "/sys/*"}}, false},
		"another property": {udev.Match{Properties: map[string]string{"PCI_CLASS": "302*", "ID_MODEL": "*"}}, false},
	} {
		if got := test.match.Matches(d); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestProperties(t *testing.T) {
	all := map[string]string{"ID_PATH": "pci-0000:01:00.0", "ID_PATH_TAG": "x", "ID_PATH2": "y", "EMPTY": "", "A": "B=C"}
	p := udev.NewProperties(all)
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

// Two values are equal exactly if they have the same properties, given in any order.
func TestPropertiesCompare(t *testing.T) {
	p := udev.NewProperties(map[string]string{"A": "1", "B": "2"})
	for name, c := range map[string]struct {
		other udev.Properties
		same  bool
	}{
		"itself":            {p, true},
		"one set again":     {p.With("B", "2"), true},
		"one more and less": {udev.NewProperties(map[string]string{"A": "1"}).With("B", "2"), true},
		"another value":     {p.With("B", "3"), false},
		"one more":          {p.With("C", ""), false},
		"one less":          {udev.NewProperties(map[string]string{"A": "1"}), false},
		"none":              {udev.Properties{}, false},
	} {
		if (c.other == p) != c.same {
			t.Errorf("%s: %v and %v", name, p, c.other)
		}
	}
	if p := udev.NewProperties(map[string]string{"DEVPATH": "/devices/x"}); p != (udev.Properties{}) {
		t.Errorf("the path is in %v", p)
	}
	if udev.NewProperties(nil) != (udev.Properties{}) || (udev.Properties{}).With("A", "1").With("B", "2") != p {
		t.Error("none and more")
	}
}

// TestMain fails if a test leaves anything running.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
