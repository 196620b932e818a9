// SPDX-License-Identifier: Apache-2.0

//go:build !cgo || nolibudev

package udev

import "errors"

// enumerate returns an error in builds without cgo or with the tag nolibudev, because these cannot read the machine's udev.
// Recordings and the event socket still work in these builds.
func enumerate() ([]Device, error) {
	return nil, errors.New("metalplugd was built without libudev")
}
