// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"cmp"
	"encoding/hex"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
)

// secretSize is the minimum length of a masked identity, in bytes. A shorter identity could also be a part of unrelated words in
// the text.
const secretSize = 5

// secrets contains a random replacement for each identity in a recording that could reveal the machine or its owner. Identities
// are serial numbers, UUIDs, world wide names, GUIDs, MAC addresses and file system labels. Models, firmware versions, PCI
// addresses, PCI IDs and the mount points of disks are not masked, because bug reports need them.
type secrets map[string]string

// secretProperties lists the udev properties whose whole value is an identity.
var secretProperties = []string{
	"ID_SERIAL_SHORT", "ID_SCSI_SERIAL", "ID_USB_SERIAL_SHORT", "ID_WWN", "ID_WWN_WITH_EXTENSION", "ID_FS_UUID", "ID_FS_UUID_SUB",
	"ID_FS_LABEL", "ID_FS_LABEL_ENC", "ID_PART_TABLE_UUID", "ID_PART_ENTRY_UUID", "ID_PART_ENTRY_NAME", "DM_UUID", "DM_NAME", "MD_UUID", "MD_NAME",
	"ID_REVISION_SERIAL", "ID_NET_NAME_MAC",
}

// secretAttrs lists the sysfs attributes that identify an NVMe controller or namespace, a GPU, or an RDMA, USB or network device
// (Documentation/ABI in the kernel source).
var secretAttrs = []string{
	"serial", "serial_number", "wwid", "wwn", "uuid", "nguid", "eui", "unique_id", "node_guid", "sys_image_guid", "board_serial",
	"product_serial", "hostnqn", "hostid", "subsysnqn", "address", "phys_port_id", "phys_switch_id",
}

func (s secrets) property(key, value string) {
	if slices.Contains(secretProperties, key) {
		s.add(value)
	}
}

func (s secrets) attr(name, value string) {
	if !slices.Contains(secretAttrs, path.Base(name)) {
		return
	}
	value = strings.TrimSpace(value)
	// In an NQN, the naming authority comes before the name (NVMe Base Specification 2.0, 4.5).
	if strings.HasPrefix(value, "nqn.") {
		value = value[strings.LastIndexByte(value, ':')+1:]
	}
	s.add(value)
	if path.Base(name) == "serial" {
		// If a namespace has no identifier of its own, its wwid contains this value in hexadecimal (wwid_show,
		// drivers/nvme/host/sysfs.c).
		s.add(hex.EncodeToString([]byte(value)))
	}
}

// text adds the UUIDs that it finds in a report of NVIDIA's driver about a GPU.
func (s secrets) text(content string) {
	for line := range strings.Lines(content) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.HasSuffix(key, "UUID") {
			s.add(strings.TrimSpace(value))
		}
	}
}

// add adds an identity, but not a prefix that names the kind of identity. An identity that is empty, short or all zeros would
// match unrelated parts of the text, so add ignores it.
func (s secrets) add(value string) {
	for _, kind := range []string{"eui.", "uuid.", "nvme.", "naa.", "t10.", "0x", "GPU-"} {
		value = strings.TrimPrefix(value, kind)
	}
	if len(value) < secretSize || strings.Trim(value, "0-:. ") == "" || strings.Contains(value, "unknown") {
		return
	}
	if s[value] == "" {
		s[value] = pseudonym(value)
	}
}

// mask replaces every identity in the text with its random replacement.
func (s secrets) mask(text string) string {
	longestFirst := func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) }
	var replacements []string
	for _, value := range slices.SortedFunc(maps.Keys(s), longestFirst) {
		replacements = append(replacements, value, s[value])
	}
	return strings.NewReplacer(replacements...).Replace(text)
}

// pseudonym returns a random text that has the same form as value. pseudonym replaces digits with digits, letters with letters of
// the same case, and hexadecimal text with hexadecimal text. All other characters remain, so the result is still a valid address,
// UUID or file name.
func pseudonym(value string) string {
	letters := 26
	if strings.Trim(value, "0123456789abcdefABCDEF-:.") == "" {
		letters = 6
	}
	return strings.Map(func(c rune) rune {
		switch {
		case c >= '0' && c <= '9':
			return '0' + rune(rand.IntN(10))
		case c >= 'a' && c <= 'z':
			return 'a' + rune(rand.IntN(letters))
		case c >= 'A' && c <= 'Z':
			return 'A' + rune(rand.IntN(letters))
		}
		return c
	}, value)
}
