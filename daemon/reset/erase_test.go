// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"bytes"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/integration/clock"
)

// eraseOf0 returns the request to erase disk0, whose content is from a pod.
func eraseOf0(method string) Request {
	return Request{
		Do:        Prepare,
		Target:    device.Target{SysPath: disk0, Class: "nvme", Identity: byWWID("eui.01")},
		Work:      device.Work{Scrub: method, Tenant: true},
		TimeoutMS: minute,
	}
}

// export simulates that the kernel exports this file over NVMe.
func (m *machine) export(name string) {
	m.Helper()
	const namespace = "/sys/kernel/config/nvmet/subsystems/x/namespaces/1/"
	m.files(map[string]string{namespace + "enable": "1\n", namespace + "device_path": name + "\n"})
}

// printOf0 returns the fingerprint of disk0 from a probe.
func printOf0(m *machine) string {
	r := eraseOf0("")
	r.Do, r.Tenant = Probe, false
	print := m.ask(r).Fingerprint
	m.calls = nil
	return print
}

// TestErasureOfKnownContent checks that the data of a pod is erased if the disk still holds this data or is blank, and that
// other data is not erased.
func TestErasureOfKnownContent(t *testing.T) {
	for name, c := range map[string]struct {
		change func(n *fakeNode)
		want   Result
	}{
		"the same":        {func(*fakeNode) {}, OK},
		"erased since":    {func(n *fakeNode) { clear(n.data) }, OK},
		"written since":   {func(n *fakeNode) { n.data[3<<20]++ }, Foreign},
		"another content": {func(n *fakeNode) { n.ext4() }, Foreign},
	} {
		t.Run(name, func(t *testing.T) {
			m, n := oneNVMe(t)
			n.fill()
			r := eraseOf0("zero")
			r.Fingerprint = printOf0(m)
			c.change(n)
			got := m.ask(r)
			if r.ByHand, r.Tenant = true, false; c.want == Foreign && !strings.Contains(m.ask(r).Detail, "which was written after its adoption") {
				t.Error("other data than the operator adopted is erased")
			}
			if r.Fingerprint == "" || got.Result != c.want || n.blank() != (c.want == OK) {
				t.Errorf("fingerprint %s: %+v", r.Fingerprint, got)
			}
			if c.want == Foreign && !strings.Contains(got.Detail, "which the last pod did not leave there") {
				t.Errorf("the reason is %q", got.Detail)
			}
		})
	}
}

// fill writes data to all blocks.
func (n *fakeNode) fill() *fakeNode {
	n.pattern(1)
	return n
}

// pattern writes data to all blocks. No block repeats a single byte.
func (n *fakeNode) pattern(seed byte) {
	block := make([]byte, blockSize)
	for i := range block {
		block[i] = byte(i) + seed
	}
	for from := 0; from < len(n.data); from += blockSize {
		copy(n.data[from:], block)
		n.data[from] = byte(from >> 12)
	}
}

// TestErasureOfSparseData checks that an erasure reads the blocks that a probe read when the pod ended. If the probe missed the
// pod's data, the data is erased. If a block that was blank contains data, the disk is not erased.
func TestErasureOfSparseData(t *testing.T) {
	m, n := oneNVMe(t)
	n.enlarge()
	r := eraseOf0("zero")
	r.Fingerprint = printOf0(m)
	probed := randomOffsets(int64(len(n.data)), seedIn(r.Fingerprint))
	for at := int64(edgeSize); at < lastFrom(int64(len(n.data))); at += blockSize {
		if !slices.Contains(probed, at) {
			n.data[at] = 1
		}
	}
	n.data[probed[7]] = 1
	m.expect(r, Foreign, fmt.Sprint("unknown data at byte ", probed[7]))
	m.checkUntouched()
	n.data[probed[7]] = 0
	if got := m.full(r); got.Result != OK || !got.Erased || !n.blank() {
		t.Errorf("answer is %+v", got)
	}
}

// TestSecondPathToDisk checks that a disk is not erased if this host uses it through a second block device.
func TestSecondPathToDisk(t *testing.T) {
	const (
		function1   = "/sys/devices/pci0000:00/0000:00:1e.0/0000:03:00.0"
		other       = function1 + "/nvme/nvme1/nvme1n1"
		scsi, scsi1 = "/sys/devices/pci0000:00/0000:00:1f.0/host0/0:0:0:0", "/sys/devices/pci0000:00/0000:00:1f.0/host1/1:0:0:0"
	)
	for name, c := range map[string]struct {
		use  func(m *machine, sysPath string, twin *fakeNode)
		want string
	}{
		"not used": {func(*machine, string, *fakeNode) {}, ""},
		"mounted": {func(m *machine, _ string, _ *fakeNode) {
			m.files(map[string]string{"/proc/1/mountinfo": "30 22 259:1 / /data rw - ext4 /dev/x rw\n"})
		}, " is mounted on /data"},
		"swapped to": {func(m *machine, at string, _ *fakeNode) {
			m.files(map[string]string{"/proc/swaps": "Filename Type\n/dev/" + path.Base(at) + " partition\n"})
		}, " is swapped to"},
		"its partition is part of LVM": {func(m *machine, at string, _ *fakeNode) {
			m.partition(at+"/"+path.Base(at)+"p1", "259:2")
			m.files(map[string]string{at + "/" + path.Base(at) + "p1/holders/dm-0": ""})
		}, "p1 is part of dm-0"},
		"claimed": {func(_ *machine, _ string, twin *fakeNode) { twin.busy = true }, " cannot be opened exclusively"},
		"open": {func(m *machine, _ string, _ *fakeNode) {
			m.others = []cgroup.Holder{{PID: 42, Comm: "qe\nmu", Number: cgroup.Number{Block: true, Major: 259, Minor: 1}}}
		}, " is open in process 42 (\"qe\\nmu\")"},
	} {
		for _, kind := range []string{"nvme", "scsi", "serial", "hidden", "removable"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := newMachine(t)
					r, at := eraseOf0("zero"), other
					var first, twin *fakeNode
					if kind == "nvme" {
						m.controller(function0, "nvme0", "S1")
						m.controller(function1, "nvme1", "S1")
						first, twin = m.disk(disk0, "259:0", "eui.01"), m.disk(other, "259:1", "eui.01")
					} else {
						r.SysPath, at, r.Class, r.Identity = scsi+"/block/sda", scsi1+"/block/sdb", "node", map[string]string{"device/wwid": "naa.01"}
						id := "wwid"
						if kind == "serial" {
							id, r.Identity = "vpd_pg80", map[string]string{"dev": "259:0"}
						}
						first, twin = m.disk(r.SysPath, "259:0", ""), m.disk(at, "259:1", "")
						for _, sysPath := range []string{r.SysPath, at} {
							m.remove(sysPath + "/wwid")
							m.remove(sysPath + "/device")
							m.files(map[string]string{
								sysPath + "/device": "-> ../..", path.Dir(path.Dir(sysPath)) + "/" + id: "naa.01\n",
								at + "/hidden":         map[bool]string{true: "1\n", false: "0\n"}[kind == "hidden"],
								sysPath + "/removable": map[bool]string{true: "1\n", false: "0\n"}[kind == "removable"],
							})
						}
					}
					first.ext4()
					c.use(m, at, twin)
					got := m.full(r)
					if c.want == "" || kind == "hidden" || kind == "removable" { // the device is another disk, or not a disk
						if got.Result != OK || !first.blank() {
							t.Errorf("answer is %+v", got)
						}
						return
					}
					if got.Result != Busy || !strings.Contains(got.Detail, path.Base(at)+c.want) || first.blank() {
						t.Errorf("answer is %+v", got)
					}
				})
			})
		}
	}
}

// TestVerification checks which content a disk may have after each erasure.
func TestVerification(t *testing.T) {
	same := func(n *fakeNode) {}
	for _, c := range []struct {
		method string
		name   string
		erases func(n *fakeNode) // simulates the disk's reaction to the erase command
		want   Result
		text   string
	}{
		{"zero", "ignored", same, Failed, "verify nvme0n1: the block at byte 0 is not all zeroes"},
		{"zero", "ones", func(n *fakeNode) { n.set(0xff) }, Failed, "is not all zeroes"},
		{"zero", "all but the last sector", func(n *fakeNode) { n.set(0); n.data[4<<20-1] = 1 }, Failed, "the block at byte 4190208 is"},
		{"discard", "ignored", same, Failed, `data is still present at byte 0: this drive keeps data that is discarded; scrub = "zero" erases it`},
		{"discard", "ones", func(n *fakeNode) { n.set(0xff) }, OK, "all read as ff"},
		{"discard", "in parts", func(n *fakeNode) { clear(n.data[:3<<20]) }, Failed, "data is still present at byte 3145728"},
		{"secure-discard", "ignored", same, Failed, "the content at byte 0 has not changed"},
		{"secure-discard", "another key", func(n *fakeNode) { n.noise() }, OK, "all have changed, 1024 have random content"},
	} {
		t.Run(c.method+"/"+c.name, func(t *testing.T) {
			m, n := oneNVMe(t)
			n.fill()
			m.onIoctl = func(n *fakeNode, request uintptr, _ []byte) (int, error) {
				if request != unix.BLKFLSBUF {
					c.erases(n)
				}
				return 0, nil
			}
			m.expect(eraseOf0(c.method), c.want, c.text)
		})
	}
}

func (n *fakeNode) set(b byte) {
	copy(n.data, bytes.Repeat([]byte{b}, len(n.data)))
}

func (n *fakeNode) noise() { n.pattern(77) }

// loop sets up a loop device on the disk, through a node outside /dev. err is the error of the loop device when it is asked
// for its file.
func (m *machine) loop(err error) {
	const sysPath = "/sys/devices/virtual/block/loop7"
	n := m.disk(sysPath, "7:7", "")
	n.below, n.belowError = unix.Mkdev(259, 0), err
	m.files(map[string]string{sysPath + "/loop/backing_file": "/srv/luns/disk1\n"})
}

// TestTimeIsUp checks that an erasure stops between two chunks when the time limit has passed, and that the answer contains
// the progress.
func TestTimeIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, n := oneNVMe(t)
		n.size(256 << 20)
		m.onIoctl = func(_ *fakeNode, request uintptr, b []byte) (int, error) {
			if request == unix.BLKZEROOUT {
				clock.Pass(30500 * time.Millisecond)
			}
			return 0, nil
		}
		got := m.ask(eraseOf0("zero"))
		if got.Result != Failed || got.Detail != "zero on nvme0n1: 134217728 of 268435456 bytes in 1m1s: allow more time" {
			t.Errorf("answer is %+v", got)
		}
	})
}

// TestKernelHangs checks that the helper answers in time if a call of the kernel does not return, and names the current step. The
// next probe finds the hanging process. Neither a hanging probe nor the next one may report anything about the disk.
func TestKernelHangs(t *testing.T) {
	for _, c := range []struct {
		request Request
		want    Answer
	}{
		{probeOf0(), Answer{Result: Late, Detail: "no result after 1m0s: reading nvme0n1 cannot be interrupted and continues"}},
		{eraseOf0("zero"), Answer{Result: Failed, Detail: "no result after 1m0s: erasing nvme0n1 by zero cannot be interrupted and continues; allow more time"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			m, n := oneNVMe(t)
			end := make(chan struct{})
			if c.request.Do == Probe {
				n.readHook = func() { <-end }
			}
			m.onIoctl = func(_ *fakeNode, request uintptr, b []byte) (int, error) {
				if request == unix.BLKZEROOUT {
					<-end
				}
				return 0, nil
			}
			r := c.request
			r.TimeoutMS = minute
			m.permit(&r)
			began := time.Now()
			got, err := exchange.Decode[Answer](m.reply(m.Context(), 0, r.Encode()))
			if err != nil || !reflect.DeepEqual(got, c.want) || time.Since(began) != r.Timeout()+grace {
				t.Errorf("after %v the answer is %+v, %v\nwant %+v", time.Since(began), got, err, c.want)
			}
			if len(m.open) == 0 {
				t.Error("the disk was closed while the kernel uses it")
			}
			close(end)
			synctest.Wait()
			m.lockElsewhere(disk0) // the process of the first request still has the lock
			n.busy, n.readHook = true, nil
			m.expect(probeOf0(), Late, "another request for "+disk0+" is in progress")
		})
	}
}
