// SPDX-License-Identifier: Apache-2.0

package device

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// idSize is the maximum length of a device ID. The device plugin API v1beta1 allows 63 characters (api.proto). A device has at
// most 1000 shares, and their IDs range from ID::0 to ID::999.
const idSize = 63 - len("::999")

// MakeID joins the parts of a hardware identity with "-" into a device ID of at most 58 bytes. The ID contains only characters
// that CDI allows in device names (letters, digits, "_", ".", ":", "-", with a letter or digit at both ends). The ID never
// contains "::", because "::" precedes the number of a share. If MakeID replaces or removes characters, it appends eight
// hexadecimal digits of the SHA-256 of the original identity, so that the ID stays unique.
func MakeID(parts ...string) string {
	original := strings.Join(parts, "-")
	id := strings.ReplaceAll(strings.Map(idRune, original), "::", ":-")
	id = strings.TrimFunc(id, func(r rune) bool { return !alphanumeric(r) })
	if id == original && id != "" && len(id) <= idSize {
		return id
	}
	sum := sha256.Sum256([]byte(original))
	digest := hex.EncodeToString(sum[:4])
	if id == "" {
		return digest
	}
	return id[:min(len(id), idSize-len(digest)-1)] + "-" + digest
}

func idRune(r rune) rune {
	if alphanumeric(r) || strings.ContainsRune("_.:-", r) {
		return r
	}
	return '-'
}

func alphanumeric(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}
