// SPDX-License-Identifier: Apache-2.0

//go:build !cgo || nolibudev

package udev

import "errors"

// errNoLibudev means that this program was built without cgo or with the tag nolibudev, so it cannot enumerate the machine's
// devices. Recordings and the event socket still work in that build.
var errNoLibudev = errors.New("open udev: metalplugd was built without libudev")

func checkLibudev() error { return errNoLibudev }

// Enumerate returns an error, because there is no libudev.
func Enumerate() ([]Device, error) { return nil, errNoLibudev }
