// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// surfaceFrom returns the quick check of a disk in memory, with these texts at these offsets.
func surfaceFrom(t *testing.T, size int64, at map[int64]string) *surface {
	t.Helper()
	return seededFrom(t, size, seed{}, at)
}

// seededFrom is like surfaceFrom, but reads the blocks that a seed selects.
func seededFrom(t *testing.T, size int64, from seed, at map[int64]string) *surface {
	t.Helper()
	s, err := readSurface(t.Context(), size, from, func(p []byte, offset int64) error {
		clear(p)
		for from, text := range at {
			if from < offset+int64(len(p)) && from+int64(len(text)) > offset {
				begin, skip := max(from-offset, 0), max(offset-from, 0)
				copy(p[begin:], text[skip:])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// section is the content that a tool has written to a disk. See testdata/content.sh.
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

// TestContentOfRealTools checks that the quick check names the content that volume tools write. It must not mistake a file
// system or a partition table for such content, because a pod may have created them.
func TestContentOfRealTools(t *testing.T) {
	all := sections(t)
	if len(all) < 30 {
		t.Fatalf("only %d disks", len(all))
	}
	for _, s := range all {
		t.Run(s.want+"/"+s.command, func(t *testing.T) {
			want := "unknown data at byte "
			if slices.ContainsFunc(knownSignatures(), func(sig signature) bool { return sig.name == s.want }) {
				want = s.want
			}
			if got := surfaceFrom(t, s.size, s.at).content(); !strings.HasPrefix(got, want) {
				t.Errorf("content is %q, want %q", got, want)
			}
		})
	}
}

// TestSignaturesWithoutTools checks signatures for which no tool for Linux is easily available. The bytes are from the documents
// that signature.go names. The test also puts them at 1 MiB, where they remain if the partition table is lost. See
// TestSignaturesAreNotErased for more.
func TestSignaturesWithoutTools(t *testing.T) {
	const size = 64<<20 + 512
	for _, c := range []struct {
		want  string
		at    int64
		magic string
	}{
		{"zfs_member", 512<<10 - 1024, "\x00\x00\x00\x00\x00\xba\xb1\x0c"},
		{"zfs_member", 64<<20 - 128<<10 + 4096, "\x0c\xb1\xba\x00\x00\x00\x00\x00"},
		{"zfs_member", 64<<20 - 384<<10, "\x0c\xb1\xba\x00\x00\x00\x00\x00"},
		{"ceph_bluestore", 1 << 20, "bluestore block device"},
		{"crypto_LUKS", 1 << 20, "LUKS\xba\xbe"},
		{"zfs_member", 1<<20 + 384<<10, "\x0c\xb1\xba\x00\x00\x00\x00\x00"},
		{"linux_raid_member", 0, "\xfc\x4e\x2b\xa9"},
		{"linux_raid_member", 64<<20 - 8192, "\xfc\x4e\x2b\xa9"},
		{"linux_raid_member", 64<<20 - 65536, "\xfc\x4e\x2b\xa9"},
		{"drbd", 64<<20 - 4096 + 60, "\x83\x74\x02\x6d"},
		{"ddf_raid_member", size - 512, "\xde\x11\xde\x11"},
		{"isw_raid_member", size - 1024, "Intel Raid ISM Cfg Sig. 1.2.01"},
		{"vmfs_volume", 1 << 20, "\x0d\xd0\x01\xc0"},
		{"crypto_LUKS", 4 << 20, "SKUL\xba\xbe"},
		{"stratis", 516, "!Stra0tis\x86\xff\x02^\x41rh"},
		{"unknown data at byte 0", 17, "x"},
		{"unknown data at byte 67108864", size - 1, "x"},
	} {
		got := surfaceFrom(t, size, map[int64]string{c.at: c.magic}).content()
		if got != c.want {
			t.Errorf("%x at %d is %q, want %q", c.magic, c.at, got, c.want)
		}
	}
}

// TestSurfaceStaysOnTheDisk checks that no read goes beyond the end of a disk.
func TestSurfaceStaysOnTheDisk(t *testing.T) {
	for size := int64(512); size <= 200<<20; size = size*3/2&^511 + 512 {
		s, err := readSurface(t.Context(), size, seed{}, func(p []byte, offset int64) error {
			if offset < 0 || offset+int64(len(p)) > size {
				t.Errorf("of %d bytes %d were read at %d", size, len(p), offset)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		s.content()
	}
}

// TestPlaces checks that places returns sorted offsets of whole blocks between the ends of a disk, and that the same seed
// gives the same offsets.
func TestPlaces(t *testing.T) {
	const size = 1<<40 + 512
	all := randomOffsets(size, seed{4})
	if len(all) < randomCount-8 || len(all) > randomCount || !slices.IsSorted(all) || all[0] < edgeSize || all[len(all)-1] >= size-edgeSize ||
		slices.ContainsFunc(all, func(o int64) bool { return o%blockSize != 0 }) {
		t.Errorf("%d places from %d to %d", len(all), all[0], all[len(all)-1])
	}
	if again := randomOffsets(size, seed{4}); !slices.Equal(all, again) {
		t.Error("the same seed gives other places")
	}
	if other := randomOffsets(size, seed{2}); slices.Equal(all, other) {
		t.Error("another seed gives the same places")
	}
	var quarters [4]int
	for _, o := range all {
		quarters[o*4/size]++
	}
	for _, n := range quarters { // the expected value is 1024, with a standard deviation of 28
		if n < 800 || n > 1250 {
			t.Errorf("they are not spread evenly: %v", quarters)
		}
	}
	if turned := randomOffsets(size, seed{1}); len(turned) < rotatingCount-8 || len(turned) > rotatingCount {
		t.Errorf("%d places of a disk that turns", len(turned))
	}
}

// TestFingerprint checks that a disk has the same fingerprint for the same seed, and another one after a change.
func TestFingerprint(t *testing.T) {
	const size = 8 << 20
	seen := make(map[string]string)
	for name, at := range map[string]map[int64]string{
		"nothing":                nil,
		"a byte":                 {0: "x"},
		"another":                {0: "y"},
		"a byte elsewhere":       {1: "x"},
		"in another block":       {4096: "x"},
		"the last byte":          {size - 1: "x"},
		"a byte between":         {5 << 20: "x"},
		"one byte over and over": {0: strings.Repeat("x", 4096)},
	} {
		sum := surfaceFrom(t, size, at).fingerprint()
		if again := surfaceFrom(t, size, at).fingerprint(); sum != again {
			t.Errorf("%s: %s, then %s", name, sum, again)
		}
		if other, ok := seen[sum]; ok {
			t.Errorf("%s and %s have one fingerprint", name, other)
		}
		seen[sum] = name
		if !isFingerprint(sum) || seedIn(sum) != (seed{}) {
			t.Errorf("%s has the fingerprint %s", name, sum)
		}
	}
	blank, ones := surfaceFrom(t, size, nil).fingerprint(), strings.Repeat("\xff", 4096)
	if sum, other := surfaceFrom(t, size, map[int64]string{0: "x"}).fingerprint(), surfaceFrom(t, size, map[int64]string{0: "x", 8192: ones}).fingerprint(); sum != other {
		t.Errorf("blocks that were never written make a difference: %s, %s", sum, other)
	}
	if sum := surfaceFrom(t, size, map[int64]string{8192: ones}).fingerprint(); sum == blank {
		t.Errorf("a disk with a block of ff has the fingerprint of a blank disk")
	}
	if sum := seededFrom(t, size, seed{1}, nil).fingerprint(); sum == blank {
		t.Error("another seed gives the same fingerprint")
	}
}
