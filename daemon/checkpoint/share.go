// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"strconv"
	"strings"
)

// ShareMark stands between the ID of a device and the number of the share.
const ShareMark = "::"

// Parent returns the device of which id may be a share, in any resource. An ID may hold the mark itself.
func Parent(id string) string {
	device, number, _ := CutShare(id)
	if _, err := strconv.ParseUint(number, 10, 0); err != nil {
		return id
	}
	return device
}

// CutShare returns the device and the number of a share. It reports ok false if id is not one.
func CutShare(id string) (device, number string, ok bool) {
	at := strings.LastIndex(id, ShareMark)
	if at < 0 {
		return id, "", false
	}
	return id[:at], id[at+len(ShareMark):], true
}
