// SPDX-License-Identifier: Apache-2.0

//go:build cgo && !nolibudev

package udev

import (
	"maps"
	"slices"
	"testing"
)

// TestEnumerateAsLibudev checks that the build without libudev finds the same devices of this machine as libudev. Other tests may add
// and remove devices meanwhile, so one of a few attempts must succeed.
func TestEnumerateAsLibudev(t *testing.T) {
	difference := make(map[string]string)
	for range 20 {
		theirs, err := Enumerate()
		own, err2 := enumerate("/sys", "/run")
		if err != nil || err2 != nil || len(own) == 0 {
			t.Fatal(len(own), err, err2)
		}
		clear(difference)
		for _, d := range theirs {
			difference[d.SysPath] = "only libudev finds the device"
		}
		for _, d := range own {
			if difference[d.SysPath] != "" {
				delete(difference, d.SysPath)
			} else {
				difference[d.SysPath] = "libudev does not find the device, or finds it once"
			}
		}
		if len(difference) == 0 {
			return
		}
	}
	t.Error(slices.Sorted(maps.Keys(difference)), difference)
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
