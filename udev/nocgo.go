// SPDX-License-Identifier: Apache-2.0

//go:build !cgo || nolibudev

package udev

import "errors"

// errNoLibudev is returned in builds without cgo or with the tag nolibudev, because these cannot read the machine's udev.
// Recordings and the event socket still work in these builds.
var errNoLibudev = errors.New("open udev: metalplugd was built without libudev")

func checkLibudev() error { return errNoLibudev }

func enumerate() ([]Device, error) { return nil, errNoLibudev }
