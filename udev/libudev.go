// SPDX-License-Identifier: Apache-2.0

//go:build cgo && !nolibudev

package udev

import (
	"errors"
	"fmt"
	"runtime"

	libudev "github.com/jochenvg/go-udev"
)

// collectEvery is the maximum number of libudev devices that wait for the garbage collector. Each device holds a few KiB of C
// memory. The collector does not know about this memory, and only a finalizer frees it.
const collectEvery = 512

// Enumerate returns copies of all of this machine's devices that have a subsystem. Enumerate sets no filter, so the result includes
// devices that udevd has not processed yet. Enumerate reads all of sysfs and udev's database, which takes about 0.1 ms for each
// device. Enumerate omits devices that vanish while it reads.
func Enumerate() ([]Device, error) {
	var u libudev.Udev
	enumeration := u.NewEnumerate()
	if enumeration == nil {
		return nil, errors.New("enumerate udev devices: libudev returned no enumeration")
	}
	paths, err := enumeration.DeviceSyspaths()
	if err != nil {
		return nil, fmt.Errorf("enumerate udev devices: %w", err)
	}
	devices := make([]Device, 0, len(paths))
	for i, path := range paths {
		if d := u.NewDeviceFromSyspath(path); d != nil && d.Subsystem() != "" { // nil if the device has vanished
			devices = append(devices, NewDevice(d.Syspath(), d.Properties()))
		}
		if i%collectEvery == collectEvery-1 {
			runtime.GC()
		}
	}
	return devices, nil
}
