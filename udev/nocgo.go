// SPDX-License-Identifier: Apache-2.0

//go:build !cgo || nolibudev

package udev

import "errors"

// errNoLibudev is returned for the machine's udev by builds without cgo or with the tag nolibudev. Recordings and the
// event socket still work.
var errNoLibudev = errors.New("open udev: metalplugd was built without libudev")

func checkLibudev() error { return errNoLibudev }

func enumerate() ([]Device, error) { return nil, errNoLibudev }
