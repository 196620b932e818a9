// SPDX-License-Identifier: Apache-2.0

//go:build cgo && !nolibudev

package udev

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestEnumerateAsLibudev checks that the build without libudev finds the same devices of this machine as libudev, in a fixed order.
// Other tests may add and remove devices at the same time, so one of a few attempts must succeed.
func TestEnumerateAsLibudev(t *testing.T) {
	difference := make(map[string]string)
	for range 20 {
		theirs, err := Enumerate()
		own, err2 := enumerate("/sys", "/run")
		if err != nil || err2 != nil || len(own) == 0 {
			t.Fatal(len(own), err, err2)
		}
		if !slices.IsSortedFunc(own, func(a, b Device) int { return strings.Compare(a.SysPath, b.SysPath) }) {
			t.Fatal("the devices are not sorted")
		}
		clear(difference)
		for _, d := range theirs {
			difference[d.SysPath] = "only libudev finds the device"
		}
		for _, d := range own {
			if difference[d.SysPath] != "" {
				delete(difference, d.SysPath)
			} else {
				difference[d.SysPath] = "only this build finds the device, or finds it twice"
			}
		}
		if len(difference) == 0 {
			return
		}
	}
	t.Error(slices.Sorted(maps.Keys(difference)), difference)
}

// TestEnumerateUnreadable checks that a part of sysfs that cannot be listed is an error, and not a machine without devices.
func TestEnumerateUnreadable(t *testing.T) {
	for _, missing := range []string{"bus", "class"} {
		sys := t.TempDir()
		for _, dir := range []string{"bus", "class"} {
			if dir != missing {
				if err := os.Mkdir(sys+"/"+dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
		if found, err := enumerate(sys, "/run"); err == nil || !strings.Contains(err.Error(), sys+"/"+missing) {
			t.Errorf("without %s: %d devices, %v", missing, len(found), err)
		}
	}
}

// TestReadDeviceAsLibudev checks that ReadDevice and libudev agree on all devices of this machine.
func TestReadDeviceAsLibudev(t *testing.T) {
	all, err := Enumerate()
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, want := range all {
		got, err := ReadDevice("/sys", "/run", want.SysPath)
		if err != nil {
			continue // the device has vanished
		}
		again, _ := ReadDevice("/sys", "/run", want.SysPath)
		if got != again { // the device is changing
			continue
		}
		compared++
		if got.Subsystem != want.Subsystem || got.DevNode != want.DevNode || got.DevType != want.DevType {
			t.Errorf("%+v, libudev says %+v", got, want)
		}
		for _, key := range []string{"SUBSYSTEM", "DEVNAME", "DEVTYPE", "DRIVER", "PCI_ID", "PCI_CLASS", "PCI_SLOT_NAME", "ID_MODEL", "ID_SERIAL", "ID_WWN", "MAJOR", "MINOR"} {
			a, ok := got.Properties.Lookup(key)
			b, is := want.Properties.Lookup(key)
			if a != b || ok != is {
				t.Errorf("%s: %s is %q (%v), libudev says %q (%v)", want.SysPath, key, a, ok, b, is)
			}
		}
	}
	if compared == 0 || compared < len(all)/2 {
		t.Errorf("only %d of %d devices were compared", compared, len(all))
	}
}
