// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/metalplug/metalplug/daemon/api"
)

// nameLen is the maximum length of a device name, which is a DNS label (RFC 1123).
const nameLen = 63

// assignNames assigns each device a name for the ResourceSlices. The names are the keys of the result. The name of a device is
// its ID, converted to a DNS label. If the label is too long, or is the same as that of another device, a hash of the ID is
// appended.
func assignNames(devices []api.Device) map[string]api.Device {
	count := make(map[string]int)
	for _, d := range devices {
		count[label(d.ID)]++
	}
	names := make(map[string]api.Device, len(devices))
	for _, d := range devices {
		if d.ID == "" {
			continue // no claim can get the device
		}
		name := label(d.ID)
		if count[name] > 1 || len(name) > nameLen || name == "" {
			sum := sha256.Sum256([]byte(d.ID))
			hash := hex.EncodeToString(sum[:4])
			name = strings.Trim(name[:min(len(name), nameLen-len(hash)-1)]+"-"+hash, "-")
		}
		names[name] = d
	}
	return names
}

// notInLabel matches a character that a DNS label cannot contain.
var notInLabel = regexp.MustCompile(`[^a-z0-9]`)

// label converts an ID to a DNS label. label changes letters to lower case, and replaces forbidden characters with "-".
func label(id string) string {
	return strings.Trim(notInLabel.ReplaceAllString(strings.ToLower(id), "-"), "-")
}
