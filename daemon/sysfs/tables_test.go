// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"strings"
	"testing"
)

func TestIsNode(t *testing.T) {
	for _, c := range []struct {
		name, device string
		want         bool
	}{
		{"/dev/nvme0n1", "nvme0n1", true},
		{"/dev/nvme0n1p1", "nvme0n1", false},
		{"/dev/cciss/c0d0", "cciss!c0d0", true},
		{"/dev/cciss/c0d1", "cciss!c0d0", false},
	} {
		if got := isNode(c.name, c.device); got != c.want {
			t.Errorf("%s, %s: %v", c.name, c.device, got)
		}
	}
}

func TestUnescape(t *testing.T) {
	for text, want := range map[string]string{
		`/mnt/a\040b\011c\134d`: "/mnt/a b\tc\\d",
		`/a\134040`:             `/a\040`,
		`/plain`:                "/plain",
		`\`:                     `\`,
		`\04`:                   `\04`,
		`/a\9`:                  `/a\9`,
		`\999x`:                 `\999x`,
		`\777`:                  `\777`, // exceeds a byte
		``:                      ``,
	} {
		if got := unescape(text); got != want {
			t.Errorf("unescape(%q) = %q, want %q", text, got, want)
		}
	}
}

// FuzzMountOf checks that each complete line about a disk is recognised.
func FuzzMountOf(f *testing.F) {
	f.Add(`36 35 259:1 / /mnt rw,noatime shared:1 - ext4 /dev/nvme0n1 rw`)
	f.Add(`36 35 0:40 / /mnt\040x rw - btrfs /dev/nvme0n1p1 rw`)
	f.Add(`36 35 0:40 / /mnt\0`)
	f.Add(` - `)
	f.Fuzz(func(t *testing.T, line string) {
		line = strings.ReplaceAll(line, "\n", " ")
		mount, _, _ := strings.Cut(line, " - ")
		fields, number := strings.Fields(mount), "259:1"
		if len(fields) > 2 {
			number = fields[2]
		}
		_, where := mountOf(&Tree{}, line, Disk{Nodes: []Node{{Number: number, Block: true}}})
		if (where != "") != (len(fields) >= 5) {
			t.Errorf("%q is mounted on %q", line, where)
		}
		if plain := unescape(line); len(plain) > len(line) || !strings.Contains(line, `\`) && plain != line {
			t.Errorf("%q is read as %q", line, plain)
		}
	})
}
