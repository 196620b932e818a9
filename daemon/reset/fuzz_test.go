// SPDX-License-Identifier: Apache-2.0

package reset

import "testing"

// FuzzContent checks disks with random bytes in the first or last 16 MiB. The quick check must not fail, and must not take a
// disk with data for a blank one.
func FuzzContent(f *testing.F) {
	f.Add(int64(4<<20), int64(0), []byte("LUKS\xba\xbe\x00\x02"))
	f.Add(int64(4<<20), int64(1080), []byte("\x53\xef"))
	f.Add(int64(1<<20), int64(510), []byte("\x55\xaa"))
	f.Add(int64(4<<20), int64(512), []byte("EFI PART\x00\x00\x01\x00\x5c\x00\x00\x00"))
	f.Add(int64(4<<20), int64(4096), []byte("\xfc\x4e\x2b\xa9\x01\x00\x00\x00"))
	f.Add(int64(4096), int64(0), []byte("XFSB"))
	f.Add(int64(4<<20), int64(4<<20-4096), []byte{})
	f.Add(int64(40<<20), int64(40<<20-edgeSize), []byte{1})
	f.Fuzz(func(t *testing.T, size, at int64, text []byte) {
		if size < 4096 || size > 40<<20 || at < 0 || at >= size {
			return
		}
		size &^= 511 // whole sectors
		text = text[:min(int64(len(text)), max(0, size-at))]
		content := surfaceFrom(t, size, map[int64]string{at: string(text)}).content()
		something := false // whether there is data; the rest of the disk is zeroes
		for from := at &^ (blockSize - 1); from < at+int64(len(text)); from += blockSize {
			b := make([]byte, min(blockSize, size-from))
			for i := range b {
				if n := from + int64(i) - at; n >= 0 && n < int64(len(text)) {
					b[i] = text[n]
				}
			}
			something = something || !isBlank(b)
		}
		seen := at+int64(len(text)) <= edgeSize || at >= lastFrom(size)
		switch {
		case something && seen && content == "":
			t.Errorf("%d bytes with %q at %d are empty", size, text, at)
		case !something && content != "":
			t.Errorf("%d zeroes are %q", size, content)
		}
	})
}
