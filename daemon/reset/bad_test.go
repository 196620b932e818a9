// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/device"
)

// badAt makes the blocks at these offsets unreadable.
func (n *fakeNode) badAt(err error, places ...int64) *fakeNode {
	n.bad = make(map[int64]error)
	for _, at := range places {
		n.bad[at] = err
	}
	return n
}

// inARow returns the offsets of count consecutive blocks, beginning at an offset.
func inARow(at int64, count int) (places []int64) {
	for i := range count {
		places = append(places, at+int64(i)*blockSize)
	}
	return places
}

// TestErasureOfUnreadableBlocks checks that an unreadable block counts as data before an erasure. After the erasure, the
// block must be readable and blank.
func TestErasureOfUnreadableBlocks(t *testing.T) {
	const size = 80 << 20
	for name, places := range map[string][]int64{
		"the first":            {0},
		"in the first 16 MiB":  {5<<20 + 8192},
		"between the ends":     {45<<20 + 4096},
		"in the last 16 MiB":   {70 << 20},
		"the last":             {size - blockSize},
		"two far apart":        {4096, 60 << 20},
		"a hundred in a row":   inARow(30<<20, 100),
		"a hundred at the end": inARow(size-100*blockSize, 100),
	} {
		for _, c := range []struct {
			scrub  string
			err    error
			partly bool
		}{{"zero", unix.EIO, true}, {"discard", unix.ENODATA, false}, {"secure-discard", unix.EILSEQ, false}} { // the last two are errors of a direct read
			if c.scrub != "zero" && name != "between the ends" {
				continue // their verification reads the same places as that of another method
			}
			t.Run(name+"/"+c.scrub, func(t *testing.T) {
				m, n := oneNVMe(t)
				n.enlarge().badAt(c.err, places...).partly = c.partly
				got := m.full(eraseOf0(c.scrub))
				if got.Result != OK || !got.Erased || !n.blank() {
					t.Errorf("answer is %+v", got)
				}
				n.badAt(c.err, places...).stays = true
				got = m.full(eraseOf0(c.scrub))
				if want := fmt.Sprintf("verify nvme0n1: byte %d cannot be read", places[0]); got.Result != Failed || got.Erased || !strings.Contains(got.Detail, want) {
					t.Errorf("it cannot be read afterwards: %+v, want %q", got, want)
				}
			})
		}
	}
}

// TestErasureOfUnreadableBlocksWithData checks that the data around unreadable blocks is verified too. A drive that keeps
// this data must be detected.
func TestErasureOfUnreadableBlocksWithData(t *testing.T) {
	m, n := oneNVMe(t)
	n.enlarge().noiseAt(45<<20, 3*blockSize).badAt(unix.EIO, 45<<20+blockSize)
	m.onIoctl = func(n *fakeNode, _ uintptr, b []byte) (int, error) {
		if len(b) == 16 {
			n.bad = nil // nothing else on the disk changes
		}
		return 0, nil
	}
	m.expect(eraseOf0("discard"), Failed, "data is still present at byte 47185920")
}

// TestDiscardInGranules checks that a disk is erased completely if it ignores the parts of a discard that are smaller than its
// granule. The granule does not divide the length of a range.
func TestDiscardInGranules(t *testing.T) {
	const granule = 192 << 10
	m, n := oneNVMe(t)
	m.files(map[string]string{disk0 + "/queue/discard_granularity": fmt.Sprintln(granule)})
	n.size(6826 * granule)                                          // 1.25 GiB, which needs two ranges
	boundary := n.data[discardChunk-granule : discardChunk+granule] // the rest of the disk is blank
	m.onIoctl = func(n *fakeNode, request uintptr, b []byte) (int, error) {
		if request == unix.BLKDISCARD {
			from := int64(binary.NativeEndian.Uint64(b))
			end := from + int64(binary.NativeEndian.Uint64(b[8:]))
			first, last := max((from+granule-1)/granule*granule, discardChunk-granule), min(end/granule*granule, discardChunk+granule)
			clear(n.data[first:max(first, last)])
		}
		return 0, nil
	}
	copy(boundary, bytes.Repeat([]byte{'A'}, len(boundary)))
	if got := m.ask(eraseOf0("discard")); got.Result != OK {
		t.Fatalf("answer is %+v", got)
	}
	if left := len(boundary) - bytes.Count(boundary, []byte{0}); left > 0 {
		t.Errorf("%d bytes of the last pod are left", left)
	}
}

// TestUnreadableBlocksProveNothing checks that a disk with an unreadable block does not count as blank, and that the reason
// names the block and the remedy.
func TestUnreadableBlocksProveNothing(t *testing.T) {
	const at = 5<<20 + 8192
	want := fmt.Sprintf("read nvme0n1 at byte %d: input/output error; if the data is not needed, erase the disk manually: metalplugctl reset ID --scrub zero", at)
	for name, r := range map[string]Request{
		"probe":                           {Do: Probe},
		"prove":                           {Do: Prepare, Target: device.Target{Fingerprint: Blank}},
		"erase what a pod has left blank": {Do: Prepare, Target: device.Target{Fingerprint: Blank}, Work: device.Work{Scrub: "zero", Tenant: true}},
		"erase what was readable when its pod left": {
			Do:     Prepare,
			Target: device.Target{Fingerprint: "0123456789abcdee:000102030405060708090a0b0c0d0e0f"},
			Work:   device.Work{Scrub: "zero", Tenant: true},
		},
	} {
		m, n := oneNVMe(t)
		n.badAt(unix.EIO, at)
		n.size(8 << 20)
		r.SysPath, r.Class, r.Identity = disk0, "nvme", byWWID("eui.01")
		if got := m.full(r); got.Result != Failed || got.Detail != want {
			t.Errorf("%s: %+v", name, got)
		}
		m.checkUntouched()
	}
	m, n := oneNVMe(t)
	n.enlarge().badAt(unix.ENODATA, 45<<20+4096)
	got := m.full(surveyOf0(0))
	if got.Result != Failed || got.Read != 45<<20+4096 || got.Detail != "read nvme0n1 at byte 47190016: no data available" {
		t.Errorf("survey: %+v", got)
	}
}

// TestUnreadableDrive checks that an unreadable block does not count as data if the whole drive fails.
func TestUnreadableDrive(t *testing.T) {
	m, n := oneNVMe(t)
	n.enlarge().badAt(unix.ENXIO, 45<<20)
	if got := m.full(eraseOf0("zero")); got.Result != Gone && got.Result != Failed {
		t.Errorf("answer is %+v", got)
	}
	if slices.ContainsFunc(m.calls, func(call string) bool { return strings.Contains(call, "0x127f") }) {
		t.Errorf("it did %q", m.calls)
	}
}

// TestProbeOfRotatingDisk checks that the quick check of a disk with 7,200 rpm ends within the time limit of a probe. The
// simulated disk takes 10 ms for a seek and reads 150 MB a second.
func TestProbeOfRotatingDisk(t *testing.T) {
	const probeTime = 16 * time.Second // device.probeLimit less device.AnswerTime
	for rotational, limit := range map[string]time.Duration{"1\n": probeTime, "0\n": time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			m, n := oneNVMe(t)
			n.enlarge()
			m.files(map[string]string{disk0 + "/queue/rotational": rotational})
			head := int64(0)
			n.onRead = func(offset int64, length int) {
				if offset != head {
					time.Sleep(10 * time.Millisecond)
				}
				head = offset + int64(length)
				time.Sleep(time.Duration(length) * time.Second / 150e6)
			}
			began := time.Now()
			r := probeOf0()
			got := m.full(r)
			if took := time.Since(began); got.Result != OK || took > limit || rotational == "0\n" && took < probeTime {
				t.Errorf("rotational %s: %v, %+v", strings.TrimSpace(rotational), took, got)
			}
			n.ext4()
			r.Fingerprint = m.full(r).Fingerprint
			m.files(map[string]string{disk0 + "/queue/rotational": "0\n"}) // an operator changed it
			if got := m.full(r); got.Fingerprint != r.Fingerprint {
				t.Errorf("fingerprint is %s, was %s", got.Fingerprint, r.Fingerprint)
			}
		})
	}
}
