// SPDX-License-Identifier: Apache-2.0

package udev

import "testing"

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
		if got := Glob(test.pattern, test.value); got != test.want {
			t.Errorf("Glob(%q, %q) is %t", test.pattern, test.value, got)
		}
	}
	if CheckGlob("a|[") == nil || CheckGlob("a|[b]*") != nil {
		t.Error("CheckGlob")
	}
}

func TestMatches(t *testing.T) {
	d := Device{Subsystem: "pci", DevType: "x", SysPath: "/sys/devices/pci0000:00/0000:00:01.0", Properties: NewProperties(map[string]string{"PCI_CLASS": "30200", "DRIVER": "nvidia"})}
	for name, test := range map[string]struct {
		match Match
		want  bool
	}{
		"everything":       {Match{}, true},
		"subsystem":        {Match{Subsystem: "pci", DevType: "x"}, true},
		"other subsystem":  {Match{Subsystem: "usb"}, false},
		"other type":       {Match{DevType: "y"}, false},
		"properties":       {Match{Properties: map[string]string{"PCI_CLASS": "302*", "DRIVER": "*"}}, true},
		"path":             {Match{Properties: map[string]string{"DEVPATH": "/devices/pci*", "DRIVER": "*"}}, true},
		"another path":     {Match{Properties: map[string]string{"DEVPATH": "/sys/*"}}, false},
		"another property": {Match{Properties: map[string]string{"PCI_CLASS": "302*", "ID_MODEL": "*"}}, false},
	} {
		if got := test.match.Matches(d); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
