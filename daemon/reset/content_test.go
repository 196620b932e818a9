// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// surfaceFrom makes a disk in memory.
func surfaceFrom(t *testing.T, size int64, at map[int64]string) *surface {
	t.Helper()
	s := &surface{size: size, read: func(p []byte, offset int64) error {
		clear(p)
		for from, text := range at {
			if from < offset+int64(len(p)) && from+int64(len(text)) > offset {
				for i := range len(text) {
					if n := from + int64(i) - offset; n >= 0 && n < int64(len(p)) {
						p[n] = text[i]
					}
				}
			}
		}
		return nil
	}}
	if err := s.readEnds(); err != nil {
		t.Fatal(err)
	}
	return s
}

// section is what a tool has made of a disk: see testdata/content.sh.
type section struct {
	want, command string
	size          int64
	at            map[int64]string
}

func sections(t *testing.T) (all []section) {
	t.Helper()
	text, err := os.ReadFile("testdata/content.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if head, ok := strings.CutPrefix(line, "== "); ok {
			want, command, _ := strings.Cut(head, ": ")
			all = append(all, section{want: want, command: command, at: map[int64]string{}})
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		s := &all[len(all)-1]
		var offset int64
		var row string
		if n, _ := fmt.Sscanf(line, "size %d", &s.size); n == 1 {
			continue
		}
		if _, err := fmt.Sscanf(line, "%d %s", &offset, &row); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		b, err := hex.DecodeString(row)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		s.at[offset] = string(b)
	}
	return all
}

// TestContentOfRealTools: what mkfs and the like write is known by its name.
func TestContentOfRealTools(t *testing.T) {
	all := sections(t)
	if len(all) < 30 {
		t.Fatalf("only %d disks", len(all))
	}
	for _, s := range all {
		t.Run(s.want+"/"+s.command, func(t *testing.T) {
			got, err := surfaceFrom(t, s.size, s.at).content()
			if err != nil || got != s.want {
				t.Errorf("content is %q, %v; want %q", got, err, s.want)
			}
		})
	}
}

// TestContentOfOthers: what no tool for Linux writes, or none that can be run without more. The bytes are those of the
// documents that signature.go names.
func TestContentOfOthers(t *testing.T) {
	const size = 64<<20 + 512
	for _, c := range []struct {
		want  string
		at    int64
		magic string
	}{
		{"zfs_member", 128 << 10, "\x0c\xb1\xba\x00\x00\x00\x00\x00"},
		{"zfs_member", 512<<10 - 1024, "\x00\x00\x00\x00\x00\xba\xb1\x0c"},
		{"zfs_member", 64<<20 - 128<<10 + 4096, "\x0c\xb1\xba\x00\x00\x00\x00\x00"},
		{"zfs_member", 64<<20 - 384<<10, "\x0c\xb1\xba\x00\x00\x00\x00\x00"},
		{"ceph_bluestore", 0, "bluestore block device\n"},
		{"linux_raid_member", 0, "\xfc\x4e\x2b\xa9"},
		{"linux_raid_member", 4096, "\xfc\x4e\x2b\xa9"},
		{"linux_raid_member", 64<<20 - 8192, "\xfc\x4e\x2b\xa9"},
		{"linux_raid_member", 64<<20 - 65536, "\xfc\x4e\x2b\xa9"},
		{"ddf_raid_member", size - 512, "\xde\x11\xde\x11"},
		{"isw_raid_member", size - 1024, "Intel Raid ISM Cfg Sig. 1.2.01"},
		{"vmfs_volume", 1 << 20, "\x0d\xd0\x01\xc0"},
		{"vmfs", 2 << 20, "\x5e\xf1\xab\x2f"},
		{"ReFS", 3, "ReFS\x00\x00\x00\x00"},
		{"crypto_LUKS", 4 << 20, "SKUL\xba\xbe"},
		{"bcachefs", 4120, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"},
		{"zonefs", 0, "SFOZ"},
		{"gpt", size - 512, "EFI PART"},
		{"gpt", size - 4096, "EFI PART"},
		{"stratis", 516, "!Stra0tis\x86\xff\x02^\x41rh"},
		{"unknown data at byte 0", 17, "x"},
		{"unknown data at byte 67105280", size - 1, "x"},
	} {
		got, err := surfaceFrom(t, size, map[int64]string{c.at: c.magic}).content()
		if err != nil || got != c.want {
			t.Errorf("%x at %d is %q, %v; want %q", c.magic, c.at, got, err, c.want)
		}
	}
}

func TestContentOfSeveral(t *testing.T) {
	got, err := surfaceFrom(t, 64<<20, map[int64]string{510: "\x55\xaa", 512: "EFI PART", 0x10040: "_BHRfS_M", 0x8001: "CD001"}).content()
	if err != nil || got != "gpt, btrfs, iso9660" {
		t.Errorf("content is %q, %v", got, err)
	}
}

// TestBlank: what an erased disk reads as is not content, wherever it is looked at.
func TestBlank(t *testing.T) {
	for _, size := range []int64{0, 512, 4096, 1 << 20, 1<<20 + 512, 2<<20 + 8192, 1 << 40} {
		for _, fill := range []byte{0, 0xff} {
			s := &surface{size: size, read: func(p []byte, _ int64) error {
				copy(p, bytes.Repeat([]byte{fill}, len(p)))
				return nil
			}}
			if err := s.readEnds(); err != nil {
				t.Fatal(err)
			}
			if got, err := s.content(); err != nil || got != "" {
				t.Errorf("%d bytes of %02x hold %q, %v", size, fill, got, err)
			}
		}
	}
}

// TestSurfaceStaysOnTheDisk: nothing is read beyond its ends, and where reading does not work that is no blank disk.
func TestSurfaceStaysOnTheDisk(t *testing.T) {
	for size := int64(512); size <= 8<<20; size = size*3/2&^511 + 512 {
		s := &surface{size: size, read: func(p []byte, offset int64) error {
			if offset < 0 || offset+int64(len(p)) > size {
				t.Errorf("of %d bytes %d were read at %d", size, len(p), offset)
			}
			return nil
		}}
		if err := s.readEnds(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.content(); err != nil {
			t.Fatal(err)
		}
	}
	torn := errors.New("a bad block")
	for _, bad := range []int64{0, 1 << 20, 32 << 20, 64<<20 - 4096} {
		s := &surface{size: 64 << 20, read: func(p []byte, offset int64) error {
			if offset <= bad && bad < offset+int64(len(p)) {
				return torn
			}
			return nil
		}}
		err := s.readEnds()
		if err == nil {
			s.size = 64 << 20
			_, err = s.content()
		}
		if bad != 32<<20 && !errors.Is(err, torn) { // that one is between two samples
			t.Errorf("a bad block at %d: %v", bad, err)
		}
	}
}

// TestSamples: evenly spread, on whole blocks, none on the ends.
func TestSamples(t *testing.T) {
	offsets := samples(1 << 40)
	if len(offsets) != sampleCount || !slices.IsSorted(offsets) || offsets[0] < edge || offsets[sampleCount-1]+sampleSize > 1<<40-edge ||
		offsets[sampleCount-1] < 1<<40-1<<35 || slices.ContainsFunc(offsets, func(o int64) bool { return o%sampleSize != 0 }) {
		t.Errorf("samples are at %v", offsets)
	}
}

// TestPrint: what is on a disk has one number, and anything else another.
func TestPrint(t *testing.T) {
	const size = 8 << 20
	seen := make(map[uint64]string)
	for name, at := range map[string]map[int64]string{
		"nothing":                nil,
		"a byte":                 {0: "x"},
		"another":                {0: "y"},
		"a byte elsewhere":       {1: "x"},
		"in another block":       {4096: "x"},
		"the last byte":          {size - 1: "x"},
		"a byte in a sample":     {samples(size)[5]: "x"},
		"one byte over and over": {0: strings.Repeat("x", 4096)},
	} {
		sum, err := surfaceFrom(t, size, at).print()
		again, _ := surfaceFrom(t, size, at).print()
		if err != nil || sum != again || sum == 0 {
			t.Errorf("%s: %d, then %d, %v", name, sum, again, err)
		}
		if other, ok := seen[sum]; ok {
			t.Errorf("%s and %s have one number", name, other)
		}
		seen[sum] = name
	}
	blank, _ := surfaceFrom(t, size, nil).print()
	if sum, err := surfaceFrom(t, size, map[int64]string{8192: strings.Repeat("\xff", 4096)}).print(); err != nil || sum != blank {
		t.Errorf("blocks that were never written make a difference: %d, %d, %v", sum, blank, err)
	}
}
