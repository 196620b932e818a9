// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package udev

import (
	"errors"
	"runtime"
	"strings"

	libudev "github.com/jochenvg/go-udev"
)

// batch is how many devices of libudev's, some KiB each in C's memory, wait for the garbage collector at most: their
// finalizers alone free them, and it does not see what they hold.
const batch = 512

func checkLibudev() error { return nil }

// enumerate copies all devices out of libudev. No filter is set, so devices that udevd has not worked off are there too.
func enumerate() ([]Device, error) {
	var u libudev.Udev
	enumeration := u.NewEnumerate()
	if enumeration == nil {
		return nil, errors.New("libudev gives no enumeration")
	}
	paths, err := enumeration.DeviceSyspaths()
	if err != nil {
		return nil, err
	}
	devices := make([]Device, 0, len(paths))
	keys := make(map[string]string) // each property name once, however many devices have it
	for i, path := range paths {
		if d := u.NewDeviceFromSyspath(path); d != nil && d.Subsystem() != "" { // nil: it has vanished
			devices = append(devices, copied(d, keys))
		}
		if i%batch == batch-1 {
			runtime.GC()
		}
	}
	return devices, nil
}

func copied(d *libudev.Device, keys map[string]string) Device {
	all := d.Properties()
	properties := make(map[string]string, len(all))
	for key, value := range all {
		known, ok := keys[key]
		if !ok {
			known = strings.Clone(key)
			keys[known] = known
		}
		properties[known] = value
	}
	return Device{
		Subsystem: d.Subsystem(), DevType: d.Devtype(), SysPath: d.Syspath(), DevNode: d.Devnode(), Properties: properties,
	}
}
