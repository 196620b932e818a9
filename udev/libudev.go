// SPDX-License-Identifier: Apache-2.0

//go:build cgo && !nolibudev

package udev

import (
	"errors"
	"runtime"

	libudev "github.com/jochenvg/go-udev"
)

// batch is how many devices of libudev's wait for the garbage collector at most. Each has some KiB in C's memory, which the
// collector does not see, and only its finalizer frees it.
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
	for i, path := range paths {
		if d := u.NewDeviceFromSyspath(path); d != nil && d.Subsystem() != "" { // nil if it has vanished
			devices = append(devices, NewDevice(d.Syspath(), d.Properties()))
		}
		if i%batch == batch-1 {
			runtime.GC()
		}
	}
	return devices, nil
}
