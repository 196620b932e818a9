// SPDX-License-Identifier: Apache-2.0

package udev_test

import (
	"testing"

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
		"everything":       {udev.Match{}, true},
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
