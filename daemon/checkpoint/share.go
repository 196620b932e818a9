// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"strconv"
	"strings"
)

// ShareMark separates the device ID from the number in the ID of a share.
const ShareMark = "::"

// Parent returns the ID of the device that a share belongs to. It returns id if id cannot be the ID of a share. The result is
// only a guess, because the ID of a device may also contain the mark.
func Parent(id string) string {
	device, number, _ := CutShare(id)
	if _, err := strconv.ParseUint(number, 10, 0); err != nil {
		return id
	}
	return device
}

// CutShare splits the ID of a share into the device ID and the number. The result ok is false if id is not the ID of a share.
func CutShare(id string) (device, number string, ok bool) {
	at := strings.LastIndex(id, ShareMark)
	if at < 0 {
		return id, "", false
	}
	return id[:at], id[at+len(ShareMark):], true
}
