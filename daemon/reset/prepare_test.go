// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/integration/clock"
)

// enlarge makes the disk so large that the quick check does not read all of it.
func (n *fakeNode) enlarge() *fakeNode {
	n.size(80 << 20)
	return n
}

// noiseAt writes random data at an offset.
func (n *fakeNode) noiseAt(at, length int64) *fakeNode {
	source := rand.NewChaCha8([32]byte{byte(at)})
	source.Read(n.data[at : at+length])
	return n
}

// TestBlankDiskIsProven prepares a disk without an erasure. The disk must be blank in every block that is read.
func TestBlankDiskIsProven(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(n *fakeNode)
		content string
	}{
		{"blank", func(n *fakeNode) {}, ""},
		{"ff among 00", func(n *fakeNode) { copy(n.data[36<<20:], bytes.Repeat([]byte{0xff}, 22<<20)) }, "unknown data at byte"},
		{"ff everywhere", func(n *fakeNode) { n.set(0xff) }, ""},
		{"a block of 00 among ff", func(n *fakeNode) { n.set(0xff); clear(n.data[1<<20 : 1<<20+4096]) }, "unknown data at byte 1048576"},
		{"00 and ff in one block", func(n *fakeNode) { copy(n.data[36<<20:], bytes.Repeat([]byte{0xff}, 512)); copy(n.data[4096:], "\xff") }, "unknown data at byte 4096"},
		{"A everywhere", func(n *fakeNode) { n.set('A') }, "unknown data at byte 0"},
		{"17 MiB in the middle", func(n *fakeNode) { n.noiseAt(40<<20, 17<<20) }, "unknown data at byte"},
		{"1 MiB at the end", func(n *fakeNode) { n.noiseAt(79<<20, 1<<20) }, "unknown data at byte 82837504"},
		{"a sector of the last 16 MiB", func(n *fakeNode) { n.noiseAt(64<<20, 512) }, "unknown data at byte 67108864"},
		{"LUKS", func(n *fakeNode) { copy(n.data, "LUKS\xba\xbe\x00\x02") }, "crypto_LUKS"},
		{"btrfs after a firstPartition table", func(n *fakeNode) { copy(n.data[1<<20+0x10040:], "_BHRfS_M") }, "unknown data at byte 1114112"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, n := oneNVMe(t)
			c.change(n.enlarge())
			r := Request{Do: Prepare, Target: device.Target{SysPath: disk0, Class: "nvme", Identity: byWWID("eui.01"), Fingerprint: Blank}}
			got := m.full(r)
			want := map[bool]Result{true: OK, false: Foreign}[c.content == ""]
			if got.Result != want || !strings.HasPrefix(got.Content, c.content) || got.Size != int64(len(n.data)) || got.Erased {
				t.Errorf("answer is %+v", got)
			}
			if want == OK && got.Appearance != "9" {
				t.Errorf("appearance is %q", got.Appearance)
			}
			if probe := m.full(Request{Do: Probe, Target: device.Target{SysPath: disk0, Class: "nvme"}}); !strings.HasPrefix(probe.Content, c.content) || strings.HasSuffix(probe.Fingerprint, ":00000000000000000000000000000000") != (c.content == "") {
				t.Errorf("a probe finds %+v", probe)
			}
			m.checkUntouched()
		})
	}
}

// TestSignaturesAreNotErased checks that signatures of volume managers, RAID and similar formats are erased only by a manual
// request, even if the daemon reports that a pod left them.
func TestSignaturesAreNotErased(t *testing.T) {
	for _, c := range []struct {
		want  string
		at    int64
		magic string
	}{
		{"LVM2_member", 1<<20 + 512, "LABELONE"},
		{"linux_raid_member", 1<<20 + 4096, "\xfc\x4e\x2b\xa9"},
		{"BitLocker", 3, "-FVE-FS-"},
		{"zfs_member", 128 << 10, "\x0c\xb1\xba\x00\x00\x00\x00\x00"},
		{"zfs_member", 1<<20 + 256<<10 + 128<<10, "\x0c\xb1\xba\x00\x00\x00\x00\x00"},
		{"ceph_bluestore", 0, "bluestore block device"},
		{"bcache", 1<<20 + 4120, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"},
		{"oracle_asm", 32, "ORCLDISK"},
		{"vmfs", 2 << 20, "\x5e\xf1\xab\x2f"},
		{"isw_raid_member", 4<<20 - 1024, "Intel Raid ISM Cfg Sig. "},
	} {
		m, n := oneNVMe(t)
		copy(n.data[c.at:], c.magic)
		r := eraseOf0("zero")
		for _, fingerprint := range []string{"", printOf0(m)} {
			r.Fingerprint = fingerprint
			if got := m.full(r); got.Result != Foreign || !strings.Contains(got.Detail, "holds "+c.want+", which metalplug does not erase automatically") || !strings.Contains(got.Content, c.want) {
				t.Errorf("%s: answer is %+v", c.want, got)
			}
		}
		m.checkUntouched()
		r.ByHand, r.Tenant = true, false
		if got := m.full(r); got.Result != OK || !got.Erased || !n.blank() {
			t.Errorf("%s by hand: %+v", c.want, got)
		}
	}
}

// TestLyingDrives checks that the helper does not trust a drive that acknowledges an erasure. It must read the blocks that
// had data.
func TestLyingDrives(t *testing.T) {
	const granule = 1 << 20
	parts := func(n *fakeNode, from, length int64, keep func(at int64) bool) {
		for at := from; at < from+length; at += blockSize {
			if end := min(at+blockSize, from+length); !keep(at) {
				clear(n.data[at:end])
			}
		}
	}
	drives := map[string]func(n *fakeNode, from, length int64){
		"keeps all": func(n *fakeNode, from, length int64) {},
		"keeps the second half": func(n *fakeNode, from, length int64) {
			parts(n, from, length, func(at int64) bool { return at >= 40<<20 })
		},
		"keeps all but the ends": func(n *fakeNode, from, length int64) {
			parts(n, from, length, func(at int64) bool { return at >= 16<<20 && at < 64<<20 })
		},
		"keeps an unaligned tail": func(n *fakeNode, from, length int64) {
			clear(n.data[from : from+length-(from+length)%granule])
		},
		"erases": func(n *fakeNode, from, length int64) { clear(n.data[from : from+length]) },
	}
	ones := func(n *fakeNode, at, length int64) {
		copy(n.data[at:at+length], bytes.Repeat([]byte{0xff}, int(length)))
	}
	contents := map[string]func(n *fakeNode){
		"1 MiB at 32 MiB":        func(n *fakeNode) { n.noiseAt(32<<20, 1<<20) },
		"one block":              func(n *fakeNode) { n.noiseAt(45<<20+8192, 4096) },
		"one byte":               func(n *fakeNode) { n.data[50<<20+12345] = 1 },
		"all over":               func(n *fakeNode) { n.fill() },
		"blank but for the tail": func(n *fakeNode) { n.noiseAt(int64(len(n.data))-granule/2, 100) },
		"1 MiB of ff":            func(n *fakeNode) { ones(n, 32<<20, 1<<20) },
		"ff but for one block":   func(n *fakeNode) { n.set(0xff); clear(n.data[45<<20 : 45<<20+4096]) },
		"blank":                  func(n *fakeNode) {},
	}
	for drive, erase := range drives {
		for content, write := range contents {
			for _, scrub := range Erasures() {
				if scrub != "discard" && content != "one block" || scrub != "discard" && strings.HasPrefix(drive, "keeps a") && drive != "keeps all" {
					continue // their verification reads the same places as that of another method
				}
				t.Run(drive+"/"+content+"/"+scrub, func(t *testing.T) {
					d, n, _ := newDrive(t)
					n.size(80<<20 + granule/2) // the last part is smaller than a granule
					write(n)
					whole := func() (uint16, error) {
						erase(n, 0, int64(len(n.data)))
						d.state(1, 65535, actBlockErase, 1)
						return 0, nil
					}
					d.alone().sanicap, d.format, d.sanitize = sanitizeBlock, whole, whole
					d.onIoctl = func(n *fakeNode, request uintptr, b []byte) (int, error) {
						if len(b) == 16 {
							erase(n, int64(binary.NativeEndian.Uint64(b)), int64(binary.NativeEndian.Uint64(b[8:])))
						}
						return 0, nil
					}
					got := d.full(eraseOf0(scrub))
					switch {
					case n.blank() && (got.Result != OK || !got.Erased):
						t.Errorf("%s on a drive that %s, with %s: %+v, though it is blank", scrub, drive, content, got)
					case !n.blank() && (got.Result != Failed || got.Erased || !strings.Contains(got.Detail, "verify nvme0n1: ")):
						t.Errorf("%s on a drive that %s, with %s: %+v, though it holds data", scrub, drive, content, got)
					case !n.blank() && scrub == "discard" && !strings.Contains(got.Detail, `this drive keeps data that is discarded; scrub = "zero" erases it`):
						t.Errorf("%s: no remedy in %q", drive, got.Detail)
					case content == "blank" && !strings.Contains(got.Done, "the disk was blank"):
						t.Errorf("of a blank disk: %q", got.Done)
					}
				})
			}
		}
	}
}

// TestTooLittleTime checks that nothing is erased if the blocks to verify cannot be found in time.
func TestTooLittleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, n := oneNVMe(t)
		n.enlarge().noiseAt(50<<20, 4096)
		n.onRead = func(_ int64, length int) {
			if length == stretchSize {
				time.Sleep(time.Second)
			}
		}
		r := eraseOf0("discard")
		r.TimeoutMS = 10000
		m.expect(r, Failed, "took too long: allow more time")
		for _, call := range m.calls {
			if strings.Contains(call, "0x1277") {
				t.Errorf("it did %s", call)
			}
		}
	})
}

// TestAppearsAgain resets a disk that then appears again. Another medium with the same identity may be in its place. So the
// disk must not be erased, and must not count as the same disk.
func TestAppearsAgain(t *testing.T) {
	for name, write := range map[string]func(n *fakeNode){
		"blank": func(n *fakeNode) {}, "with data": func(n *fakeNode) { n.ext4() }, "with data that the quick check misses": func(n *fakeNode) { n.enlarge().noiseAt(40<<20, 512) },
	} {
		for _, scrub := range []string{"", "zero"} {
			t.Run(name+" "+scrub, func(t *testing.T) {
				m, n := oneNVMe(t)
				write(n)
				m.onIoctl = func(_ *fakeNode, request uintptr, b []byte) (int, error) {
					if request == nvmeIoctlReset {
						n.seq = 10
						m.files(map[string]string{disk0 + "/diskseq": "10\n"})
					}
					return 0, nil
				}
				got := m.full(Request{
					Do:     Prepare,
					Target: device.Target{SysPath: disk0, Class: "nvme", Identity: map[string]string{"wwid": "eui.01", "diskseq": "9"}},
					Work:   device.Work{Method: "nvme-controller", Scrub: scrub, Tenant: true},
				})
				if scrub == "" && (got.Result != OK || got.Appearance != "") || scrub != "" && (got.Result != Failed || !strings.Contains(got.Detail, "another medium may be in its place")) {
					t.Errorf("answer is %+v", got)
				}
				if slices.ContainsFunc(m.calls, func(call string) bool { return strings.Contains(call, "0x127f") }) {
					t.Errorf("it did %q", m.calls)
				}
			})
		}
	}
}

// TestAppearsAgainWhileErased checks that an erasure does not count if another disk is there afterwards.
func TestAppearsAgainWhileErased(t *testing.T) {
	m, n := oneNVMe(t)
	n.fill()
	m.onIoctl = func(_ *fakeNode, request uintptr, b []byte) (int, error) {
		if len(b) == 16 {
			clear(n.data)
			m.files(map[string]string{disk0 + "/diskseq": "10\n"}) // another disk has the name now, while the first one is still open
		}
		return 0, nil
	}
	got := m.full(eraseOf0("zero"))
	if got.Result != Failed || got.Erased || got.Appearance != "" || !strings.Contains(got.Detail, "cannot be verified") {
		t.Errorf("answer is %+v", got)
	}
}

// TestStoppedInBetween stops the process at each possible step. Another disk then takes the name, the number and the
// identity of the first one. The helper must not write to the other disk.
func TestStoppedInBetween(t *testing.T) {
	for stop := 1; ; stop++ {
		m, n := oneNVMe(t)
		n.ext4()
		other := &fakeNode{name: "nvme0n1", node: n.node, data: bytes.Repeat([]byte("other"), 4<<20/5+1)[:4<<20], seq: 11, nsid: 1}
		was := slices.Clone(other.data)
		opens, swapped := 0, false
		n.opened = func() {
			if opens++; opens == stop {
				swapped = true
				m.nodes["/dev/nvme0n1"] = other // open descriptors still refer to the first disk
				m.files(map[string]string{disk0 + "/diskseq": "11\n"})
			}
		}
		got := m.full(eraseOf0("zero"))
		if !bytes.Equal(other.data, was) {
			t.Fatalf("stopped at open %d: the other disk was written to: %+v", stop, got)
		}
		if !swapped {
			if got.Result != OK || !got.Erased {
				t.Errorf("answer is %+v", got)
			}
			return
		}
		if got.Result == OK || got.Erased || got.Appearance != "" {
			t.Errorf("stopped at open %d: %+v", stop, got)
		}
	}
}

// TestOpenElsewhere checks that the helper asks for the users of the disk right before it writes. A user is a process that
// has the disk, a partition, its controller or its character device open. Unreadable processes count if their pod has had
// the disk, or if the pods of the disk are unknown.
func TestOpenElsewhere(t *testing.T) {
	const partition, generic = disk0 + "/nvme0n1p1", controller0 + "/ng0n1"
	const unknown = "cannot determine which processes have nvme0n1 open: "
	const unread = unknown + "inspect processes: not all processes could be inspected: 2 of them: process 9: permission denied"
	opens := func(n cgroup.Number) func(m *machine, r *Request) {
		return func(m *machine, _ *Request) { m.others = []cgroup.Holder{{PID: 42, Comm: "qemu", Number: n}} }
	}
	pod := func(unread string, tenant bool, pods ...string) func(m *machine, r *Request) {
		return func(m *machine, r *Request) {
			m.pods = []cgroup.Unread{{PodUID: unread, Count: 2, Cause: "process 9: permission denied"}}
			r.Pods, r.Tenant, r.ByHand = pods, tenant, !tenant
		}
	}
	for _, c := range []struct {
		name   string
		change func(m *machine, r *Request)
		want   string
	}{
		{"the disk", opens(cgroup.Number{Block: true, Major: 259}), "nvme0n1 is open in process 42 (\"qemu\")"},
		{"a partition", opens(cgroup.Number{Block: true, Major: 259, Minor: 1}), "nvme0n1p1 is open in process 42 (\"qemu\")"},
		{"its controller", opens(cgroup.Number{Major: 245}), "nvme0 is open in process 42 (\"qemu\")"},
		{"its character device", opens(cgroup.Number{Major: 242, Minor: 7}), "ng0n1 is open in process 42 (\"qemu\")"},
		{"the disk, by udev for a moment", func(m *machine, _ *Request) {
			began, none := time.Now(), m.host.holders
			m.others = []cgroup.Holder{{PID: 7, Comm: "(udev-worker)", Number: cgroup.Number{Block: true, Major: 259}}}
			m.host.holders = func(ctx context.Context, c config.Config, asked []cgroup.Number) (cgroup.Answer, error) {
				if time.Since(began) >= time.Second {
					m.others = nil
				}
				return none(ctx, c, asked)
			}
		}, ""},
		{"another disk", opens(cgroup.Number{Block: true, Major: 8}), ""},
		{"not known", func(m *machine, _ *Request) { m.unread = errors.New("process 9 cannot be read") }, unknown + "process 9 cannot be read"},
		{"unread, of its pod", pod("mine", true, "mine"), unread},
		{"unread, of its pod, by hand", pod("mine", false, "mine"), unread},
		{"unread, of an earlier pod", pod("mine", true, "last", "mine"), unread},
		{"unread, of another pod", pod("other", true, "mine"), ""},
		{"unread, of a pod, with no tenant known", pod("other", true), unread},
		{"unread, of a pod, with no tenant", pod("other", false), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, n := oneNVMe(t)
				n.fill()
				m.partition(partition, "259:1")
				m.files(map[string]string{
					generic + "/subsystem": in(generic, "/sys/class/nvme-generic"), generic + "/dev": "242:7\n", generic + "/uevent": "DEVNAME=ng0n1\n",
				})
				r := eraseOf0("zero")
				c.change(m, &r)
				began := time.Now()
				got := m.full(r)
				if c.want == "" {
					if got.Result != OK || !got.Erased {
						t.Errorf("answer is %+v", got)
					}
					return
				}
				if got.Result != Busy || got.Detail != c.want || n.blank() || time.Since(began) < closeLimit {
					t.Errorf("after %v the answer is %+v", time.Since(began), got)
				}
				if slices.ContainsFunc(m.calls, func(call string) bool { return strings.Contains(call, "0x127f") }) {
					t.Errorf("it did %q", m.calls)
				}
			})
		})
	}
}

// TestHoldersCheckedLast checks that the helper does nothing slow between the answer about processes and the erasure.
// After a long erasure, it must ask again.
func TestHoldersCheckedLast(t *testing.T) {
	for _, scrub := range []string{"zero", "format", "sanitize"} {
		for _, opened := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				d, n, _ := newDrive(t)
				erasing, asked := false, 0
				slow := func() (uint16, error) {
					erasing = true
					clock.Pass(time.Minute)
					clear(n.data)
					d.state(1, 65535, actBlockErase, 1)
					return 0, nil
				}
				d.alone().sanicap, d.format, d.sanitize = sanitizeBlock, slow, slow
				d.onIoctl = func(_ *fakeNode, _ uintptr, b []byte) (int, error) {
					if len(b) == 16 {
						slow()
					}
					return 0, nil
				}
				n.onRead = func(int64, int) {
					if asked > 0 && !erasing {
						t.Error("the disk is read between the answer and the erasure")
					}
				}
				d.host.holders = func(context.Context, config.Config, []cgroup.Number) (cgroup.Answer, error) {
					if asked++; erasing && opened {
						return cgroup.Answer{Holders: qemu}, nil
					}
					return cgroup.Answer{}, nil
				}
				r := eraseOf0(scrub)
				r.TimeoutMS = 10 * minute
				got := d.full(r)
				if opened && (got.Result != Foreign || got.Erased || got.Detail != "another process may have written to nvme0n1 since it was erased: nvme0n1 is open in process 42 (\"qemu\")") || !opened && (got.Result != OK || asked != 2) {
					t.Errorf("%s: asked %d times, answer is %+v", scrub, asked, got)
				}
			})
		}
	}
}

// TestConcurrentWrites checks that the helper notices a process that writes to the disk while the helper reads or erases it. The
// process closes the disk in time, so only the kernel's count of writes shows the write.
func TestConcurrentWrites(t *testing.T) {
	for _, c := range []struct {
		name, scrub     string
		reading, during int  // number of sectors that are written while the disk is read, and while it is erased
		data            byte // what the process leaves at a place that is already erased
		want            Result
		detail          string
	}{
		{"read", "zero", 8, 0, 0, Foreign, "a process may have written to nvme0n1 after the last pod had ended"},
		{"data", "zero", 0, 8, 1, Foreign, "another process wrote to nvme0n1 during its erasure: verify nvme0n1: data is present at byte 52428800"},
		{"the kernel repeats a write", "zero", 0, 8, 0, OK, ""},
		{"data", "discard", 0, 8, 1, Foreign, "during its erasure: verify nvme0n1: data is present at byte 52428800"},
		{"data", "format", 0, 8, 0, Foreign, "during its erasure: verify nvme0n1: data is present at byte 0"},
		{"data", "sanitize", 0, 8, 0, Foreign, "during its erasure: verify nvme0n1: data is present at byte 0"},
	} {
		t.Run(c.scrub+"/"+c.name, func(t *testing.T) {
			d, n, _ := newDrive(t)
			n.enlarge().fill()
			count := 0
			wrote := func(sectors int) {
				count += sectors
				d.files(map[string]string{disk0 + "/stat": fmt.Sprintf("0 0 0 0 0 0 %d", count)})
			}
			whole := func() (uint16, error) {
				n.noise()
				wrote(c.during)
				d.state(1, 65535, actBlockErase, 1)
				return 0, nil
			}
			d.alone().sanicap, d.format, d.sanitize = sanitizeBlock, whole, whole
			d.host.holders = func(context.Context, config.Config, []cgroup.Number) (a cgroup.Answer, _ error) {
				wrote(c.reading)
				return a, nil
			}
			d.onIoctl = func(_ *fakeNode, _ uintptr, b []byte) (int, error) {
				if len(b) == 16 {
					from, length := binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:])
					clear(n.data[from : from+length])
					wrote(int(length/512) + c.during)
					n.data[50<<20] |= c.data
				}
				return 0, nil
			}
			r := eraseOf0(c.scrub)
			r.Written = new(uint64)
			if got := d.full(r); got.Result != c.want || got.Erased != (c.want == OK) || got.Erased && (got.Appearance != "9" || got.Written != uint64(count)) || !strings.Contains(got.Detail, c.detail) || c.reading > 0 && n.blank() {
				t.Errorf("answer is %+v", got)
			}
		})
	}
}
