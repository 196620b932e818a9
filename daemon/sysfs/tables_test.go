// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestMounts(t *testing.T) {
	const table = `22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/root rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
36 35 0:40 /@ /mnt\040x rw master:1 - btrfs /dev/disk/by-label/a\040b rw
37 35 8:1 / /torn
38 35 8:2
 - ext4 /dev/sda1
`
	want := []mount{
		{"259:2", "/", "/dev/root"}, {"0:21", "/proc", "proc"}, {"0:40", "/mnt x", "/dev/disk/by-label/a b"}, {"8:1", "/torn", ""},
	}
	if got := slices.Collect(mounts(table)); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	for m := range mounts(table) {
		if m.anonymous() != (m.number != "259:2") {
			t.Errorf("%+v", m)
		}
		if m.number == "0:21" {
			break // as a caller does that has found the name
		}
	}
}

func TestSwaps(t *testing.T) {
	const table = "Filename\t\t\t\tType\t\tSize\n/dev/nvme0n1p3                          partition\t1\n/swap\\040file file 1\n"
	want := []string{"Filename\t\t\t\tType\t\tSize", "/dev/nvme0n1p3", "/swap file"}
	if got := slices.Collect(swaps(table)); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for name := range swaps(table) {
		if name == "/swap file" {
			t.Error("it goes on after it was left")
		}
		if name == "/dev/nvme0n1p3" {
			break
		}
	}
}

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
		`\777`:                  `\777`, // more than a byte holds
		``:                      ``,
	} {
		if got := unescape(text); got != want {
			t.Errorf("unescape(%q) = %q, want %q", text, got, want)
		}
	}
}

// FuzzMounts checks that no line hides a whole one.
func FuzzMounts(f *testing.F) {
	f.Add(`36 35 259:1 / /mnt rw,noatime shared:1 - ext4 /dev/nvme0n1 rw`)
	f.Add(`36 35 0:40 / /mnt\040x rw - btrfs /dev/nvme0n1p1 rw`)
	f.Add(`36 35 0:40 / /mnt\0`)
	f.Add(` - `)
	f.Fuzz(func(t *testing.T, line string) {
		line = strings.ReplaceAll(line, "\n", " ")
		mount, _, _ := strings.Cut(line, " - ")
		fields, found := strings.Fields(mount), slices.Collect(mounts(line))
		if len(fields) >= 5 && (len(found) != 1 || found[0].number != fields[2]) || len(fields) < 5 && len(found) > 0 {
			t.Errorf("%q is read as %+v", line, found)
		}
		if plain := unescape(line); len(plain) > len(line) || !strings.Contains(line, `\`) && plain != line {
			t.Errorf("%q is read as %q", line, plain)
		}
	})
}
