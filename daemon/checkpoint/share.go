// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"strconv"
	"strings"
)

// ShareMark separates the ID of a device from the number of the share.
const ShareMark = "::"

// Parent returns the device to which the share id would belong, in any resource. The ID of a device may also contain
// the mark.
func Parent(id string) string {
	device, number, _ := CutShare(id)
	if _, err := strconv.ParseUint(number, 10, 0); err != nil {
		return id
	}
	return device
}

// CutShare splits a share into device and number. ok is false if id is not a share.
func CutShare(id string) (device, number string, ok bool) {
	at := strings.LastIndex(id, ShareMark)
	if at < 0 {
		return id, "", false
	}
	return id[:at], id[at+len(ShareMark):], true
}
