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

// secretSize is the shortest identity that is masked, in bytes. A shorter one is in every other word of the text.
const secretSize = 5

// secrets are the identities in a recording by which a reader could find the machine or its owner. They are serial numbers,
// UUIDs, world wide names, GUIDs, MAC addresses and names of file systems. The kind of the hardware stays, because a bug
// report is about that. It is in models, firmware versions, PCI addresses and IDs, and mount points of disks.
//
// Each has a random text in its place.
type secrets map[string]string

// secretProperties are udev's properties that are an identity and nothing else.
var secretProperties = []string{
	"ID_SERIAL_SHORT", "ID_SCSI_SERIAL", "ID_USB_SERIAL_SHORT", "ID_WWN", "ID_WWN_WITH_EXTENSION", "ID_FS_UUID", "ID_FS_UUID_SUB",
	"ID_FS_LABEL", "ID_FS_LABEL_ENC", "ID_PART_TABLE_UUID", "ID_PART_ENTRY_UUID", "ID_PART_ENTRY_NAME", "DM_UUID", "DM_NAME", "MD_UUID", "MD_NAME",
	"ID_REVISION_SERIAL", "ID_NET_NAME_MAC",
}

// secretAttrs are the names of attributes in sysfs that are an identity of NVMe controllers and namespaces, GPUs, RDMA
// devices, USB and network devices (Documentation/ABI in the kernel's sources).
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
	if strings.HasPrefix(value, "nqn.") { // the name follows its authority (NVMe Base Specification 2.0, 4.5)
		value = value[strings.LastIndexByte(value, ':')+1:]
	}
	s.add(value)
	if path.Base(name) == "serial" {
		// The wwid of a namespace that has none of its own holds it in hexadecimal (wwid_show,
		// drivers/nvme/host/sysfs.c).
		s.add(hex.EncodeToString([]byte(value)))
	}
}

// text takes the UUIDs out of what NVIDIA's driver says of a GPU.
func (s secrets) text(content string) {
	for line := range strings.Lines(content) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.HasSuffix(key, "UUID") {
			s.add(strings.TrimSpace(value))
		}
	}
}

// add notes an identity. An identity that is short or empty, as the serial numbers of cheap hardware, would be found in half
// of the text. The prefix names its kind, and stays.
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

// mask replaces each identity everywhere by a random one of the same form, the same one in all texts.
func (s secrets) mask(text string) string {
	longestFirst := func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) }
	var replacements []string
	for _, value := range slices.SortedFunc(maps.Keys(s), longestFirst) {
		replacements = append(replacements, value, s[value])
	}
	return strings.NewReplacer(replacements...).Replace(text)
}

// pseudonym returns a random text of the same form, with digits for digits and letters for letters of the same case. A
// hexadecimal text stays one. The rest stays, so that it is still an address, a UUID or a name for a file.
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
