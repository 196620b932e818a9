// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"encoding/binary"
	"reflect"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/device"
)

// probeOf0 returns the request to probe disk0.
func probeOf0() Request {
	return Request{Do: Probe, Target: device.Target{SysPath: disk0, Class: "nvme", Identity: byWWID("eui.01")}}
}

// setIdentify makes a controller answer requests for Identify and for the SMART log.
func (m *machine) setIdentify(oacs uint16, fna, sanicap, dlfeat byte) {
	m.onAdmin = func(c adminCommand, data []byte) (uint16, error) {
		switch {
		case c.opcode == opIdentify && c.cdw10 == cnsController:
			binary.LittleEndian.PutUint16(data[256:], oacs)
			data[524], data[328] = fna, sanicap
		case c.opcode == opIdentify && c.cdw10 == cnsNamespace:
			data[33] = dlfeat
		case c.opcode == opGetLogPage && c.cdw10 == 0x007f0002: // 128 dwords of log page 2
			copy(data, "\x04\x37\x01\x5a\x0a\x65")
			data[160] = 7
		}
		return 0, nil
	}
}

// TestEachProbeReadsOtherPlaces checks that two probes read different random blocks. Otherwise a pod could learn these
// blocks, and hide data from the next probe.
func TestEachProbeReadsOtherPlaces(t *testing.T) {
	m, n := oneNVMe(t)
	n.fill()
	if first, second := printOf0(m), printOf0(m); first == "" || seedIn(first) == seedIn(second) {
		t.Errorf("two probes read the same places: %s, %s", first, second)
	}
}

// zfs writes a ZFS label to a disk.
func (n *fakeNode) zfs() *fakeNode {
	copy(n.data[128<<10:], "\x0c\xb1\xba\x00\x00\x00\x00\x00")
	return n
}

func TestProbe(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    Do
		setup func(m *machine, n *fakeNode)
		want  Answer
	}{
		{"empty", Probe, func(m *machine, n *fakeNode) {}, Answer{Result: OK}},
		{"a file system", Probe, func(m *machine, n *fakeNode) { n.ext4() }, Answer{Result: OK, Report: device.Report{Content: "unknown data at byte 0"}}},
		{"a partition that is not in the table", Probe, func(m *machine, n *fakeNode) { m.partition(disk0+"/nvme0n1p1", "259:1") }, Answer{Result: OK, Report: device.Report{Content: "partitions that the kernel has not dropped yet"}}},
		{"mounted", Probe, func(m *machine, n *fakeNode) {
			m.files(map[string]string{"/proc/1/mountinfo": "30 22 259:0 / /data\\040a rw - ext4 /dev/nvme0n1 rw\n"})
		}, Answer{Result: Busy, Detail: "nvme0n1 is mounted on /data a"}},
		{"claimed", Probe, func(m *machine, n *fakeNode) { n.busy = true }, Answer{Result: Busy, Detail: "/dev/nvme0n1 cannot be opened exclusively: it is mounted, part of another device, or open elsewhere", Report: device.Report{Claimed: true}}},
		// For a disk in an imported ZFS pool or of a running Ceph OSD, the kernel shows neither a mount nor a holder.
		{"claimed, to be offered", Offer, func(m *machine, n *fakeNode) { n.zfs().busy = true }, Answer{Result: Busy, Detail: "/dev/nvme0n1 cannot be opened exclusively: it is mounted, part of another device, or open elsewhere", Report: device.Report{Content: "zfs_member", Claimed: true}}},
		{"of no one, to be offered", Offer, func(m *machine, n *fakeNode) { n.zfs() }, Answer{Result: OK, Report: device.Report{Content: "zfs_member"}}},
		{"claimed, and not offered", Probe, func(m *machine, n *fakeNode) { n.zfs().busy = true }, Answer{Result: OK, Report: device.Report{Content: "zfs_member"}}},
		{"dead", Probe, func(m *machine, n *fakeNode) { n.data = nil }, Answer{Result: Gone, Detail: "nvme0n1 has no size, because its driver has disabled the disk or the disk is being formatted"}},
		{"not readable", Probe, func(m *machine, n *fakeNode) { n.readError = unix.EIO }, Answer{Result: Failed, Detail: "read nvme0n1 at byte 0: input/output error; if the data is not needed, erase the disk manually: metalplugctl reset ID --scrub zero"}},
		{"gone while read", Probe, func(m *machine, n *fakeNode) { n.readHook = func() { n.data = nil } }, Answer{Result: Gone, Detail: "read nvme0n1 at byte 0: the device ends there"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, n := oneNVMe(t)
			m.setIdentify(1<<1, 1<<2, 0, 0)
			c.setup(m, n)
			if n.data != nil { // a disk without data simulates one that the driver has disabled
				c.want.Smart = device.Smart{Known: true, Warning: 4, Used: 101, Spare: 90, Temperature: 38, MediaErrors: 7}
			}
			r := probeOf0()
			r.Do = c.do
			got := m.ask(r)
			if printed := got.Fingerprint != ""; printed != (c.want.Result == OK || c.want.Claimed) {
				t.Errorf("fingerprint is %q", got.Fingerprint)
			}
			got.Detail = regexp.MustCompile(`at byte \d+`).ReplaceAllString(got.Detail, "at byte 0") // several reads run at the same time, so the offset varies
			if got.Fingerprint, got.Size = "", 0; !reflect.DeepEqual(got, c.want) {
				t.Errorf("answer is %+v\nwant %+v", got, c.want)
			}
			if len(m.calls) > 0 {
				t.Errorf("a look did %q", m.calls)
			}
		})
	}
}

// TestProbeWaitsForAClaim checks that a probe waits for another process that claims the disk for a moment, but not for
// longer.
func TestProbeWaitsForAClaim(t *testing.T) {
	const claimed = "/dev/nvme0n1 cannot be opened exclusively: it is mounted, part of another device, or open elsewhere"
	for _, c := range []struct {
		name   string
		claims time.Duration
		after  func(m *machine)
		want   Answer // only the fields that concern a claim
		took   time.Duration
	}{
		{"for a moment", 90 * time.Millisecond, nil, Answer{Result: OK}, 100 * time.Millisecond},
		{"for a moment, and writes to it", 90 * time.Millisecond, func(m *machine) {
			m.nodes["/dev/nvme0n1"].ext4()
		}, Answer{Result: OK, Report: device.Report{Content: "unknown data at byte 0"}}, 100 * time.Millisecond},
		{"for longer", time.Hour, nil, Answer{Result: Busy, Detail: claimed}, exclusiveOpenLimit},
		{"until it is mounted", 90 * time.Millisecond, func(m *machine) {
			m.files(map[string]string{"/proc/1/mountinfo": "30 22 259:0 / /data rw - ext4 /dev/nvme0n1 rw\n"})
		}, Answer{Result: Busy, Detail: "nvme0n1 is mounted on /data"}, 100 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, n := oneNVMe(t)
				began := time.Now()
				n.claimed = func() bool {
					claims := time.Since(began) < c.claims
					if !claims && c.after != nil {
						c.after(m)
					}
					return claims
				}
				got := m.ask(probeOf0())
				if got := (Answer{Result: got.Result, Detail: got.Detail, Report: device.Report{Content: got.Content}}); !reflect.DeepEqual(got, c.want) || time.Since(began) != c.took {
					t.Errorf("after %v the answer is %+v\nwant %+v after %v", time.Since(began), got, c.want, c.took)
				}
			})
		})
	}
}

// A probe must neither claim nor read a disk that a pod holds.
func TestProbeDoesNotDisturbPods(t *testing.T) {
	m, n := oneNVMe(t)
	n.busy, n.readError = true, unix.EIO
	m.lockElsewhere(disk0)
	r := probeOf0()
	r.Do = Look
	if got := m.ask(r); got.Result != OK || !got.Smart.Known {
		t.Errorf("answer is %+v", got)
	}
}

// TestProbeIdentifiesTheControllerOnce counts the commands of each inspection.
func TestProbeIdentifiesTheControllerOnce(t *testing.T) {
	m, _ := oneNVMe(t)
	m.setIdentify(1<<1, 1<<2, sanitizeBlock, 0)
	answer, asked := m.onAdmin, 0
	m.onAdmin = func(c adminCommand, data []byte) (uint16, error) {
		if c.opcode == opIdentify && c.cdw10 == cnsController {
			asked++
		}
		return answer(c, data)
	}
	if got := m.ask(probeOf0()); got.Result != OK || asked != 1 {
		t.Errorf("it was asked %d times: %+v", asked, got)
	}
}

// TestWhichDeviceItIs checks that every request is refused for a wrong device or a changed one.
func TestWhichDeviceItIs(t *testing.T) {
	const p1 = disk0 + "/nvme0n1p1"
	for _, c := range []struct {
		name   string
		change func(m *machine, n *fakeNode, r *Request)
		want   Result
		detail string
	}{
		{"not in sysfs", func(m *machine, n *fakeNode, r *Request) { r.SysPath = "/dev/nvme0n1" }, Refused, `"/dev/nvme0n1" is not the path of a device below /sys/devices/`},
		{"up and away", func(m *machine, n *fakeNode, r *Request) { r.SysPath = "/sys/devices/../block/nvme0n1" }, Refused, "is not the path of a device"},
		{"a link in the path", func(m *machine, n *fakeNode, r *Request) {
			m.files(map[string]string{"/sys/devices/short": in("/sys/devices", controller0)})
			r.SysPath = "/sys/devices/short/nvme0n1"
		}, Refused, "is a link"},
		{"not there", func(m *machine, n *fakeNode, r *Request) { m.remove(disk0) }, Gone, "does not exist"},
		{"no device", func(m *machine, n *fakeNode, r *Request) { m.remove(disk0 + "/subsystem") }, Refused, "has no subsystem"},
		{"another class", func(m *machine, n *fakeNode, r *Request) { r.SysPath = controller0 }, Refused, "is not an nvme device: its subsystem is nvme"},
		{"a disk of another kind", func(m *machine, n *fakeNode, r *Request) {
			m.files(map[string]string{controller0 + "/subsystem": in(controller0, "/sys/class/scsi_host"), "/sys/class/scsi_host/.": ""})
		}, Refused, "is not an nvme device: its subsystem is block"},
		{"a partition", func(m *machine, n *fakeNode, r *Request) {
			m.partition(p1, "259:1")
			r.SysPath = p1
		}, Refused, "is not an nvme device"},
		{"a partition as a node", func(m *machine, n *fakeNode, r *Request) {
			m.partition(p1, "259:1")
			r.SysPath, r.Class = p1, "node"
		}, Refused, "is a partition, but only whole disks"},
		{"a path of a multipath disk", func(m *machine, n *fakeNode, r *Request) { m.files(map[string]string{disk0 + "/hidden": "1"}) }, Refused, "is one of several paths"},
		{"another serial number", func(m *machine, n *fakeNode, r *Request) {
			r.Identity["device/serial"] = "S2"
		}, Refused, `device/serial is "S1", not "S2"`},
		{"an attribute that is not there", func(m *machine, n *fakeNode, r *Request) { r.Identity = map[string]string{"nguid": "x"} }, Gone, "has no attribute nguid"},
		{"an empty attribute", func(m *machine, n *fakeNode, r *Request) {
			m.files(map[string]string{disk0 + "/wwid": "\n"})
			r.Identity = byWWID("")
		}, Refused, "is not the requested device"},
		{"an attribute elsewhere", func(m *machine, n *fakeNode, r *Request) { r.Identity = map[string]string{"device/../../x": "x"} }, Refused, "is not the name of an attribute"},
		{"an attribute that leads away", func(m *machine, n *fakeNode, r *Request) {
			m.files(map[string]string{disk0 + "/wwid": "-> " + m.root + "/proc/1/mountinfo"})
		}, Refused, "is not an attribute of a device"},
		{"the node of another device", func(m *machine, n *fakeNode, r *Request) { n.node.number = "8:0" }, Refused, "/dev/nvme0n1 is the node of another device: 8:0, not 259:0"},
		{"a node of another kind", func(m *machine, n *fakeNode, r *Request) { n.node.block = false }, Refused, "is the node of another device"},
		{"no node", func(m *machine, n *fakeNode, r *Request) { delete(m.nodes, "/dev/nvme0n1") }, Gone, "open /dev/nvme0n1: no such file"},
		{"a node with a strange name", func(m *machine, n *fakeNode, r *Request) {
			m.files(map[string]string{disk0 + "/uevent": "DEVNAME=../etc/shadow\nDEVTYPE=disk\n"})
		}, Refused, "nvme0n1"},
		{"another one under the same name and number", func(m *machine, n *fakeNode, r *Request) { n.seq = 10 }, Gone, "was replaced by another disk"},
		{"swapped between look and open", func(m *machine, n *fakeNode, r *Request) {
			n.opened = func() { m.files(map[string]string{disk0 + "/wwid": "eui.02\n"}) }
		}, Refused, `wwid is "eui.02", not "eui.01"`},
	} {
		for op, asked := range map[string]Request{
			"probe": {Do: Probe}, "survey": {Do: Survey}, "erase": {Do: Prepare, Work: device.Work{Scrub: "zero", Tenant: true}}, "reset": {Do: Prepare, Work: device.Work{Method: "nvme-controller"}},
			"prove": {Do: Prepare, Target: device.Target{Fingerprint: Blank}},
		} {
			t.Run(op+"/"+c.name, func(t *testing.T) {
				m, n := oneNVMe(t)
				r := probeOf0()
				r.Do, r.Method, r.Scrub, r.Tenant, r.Fingerprint = asked.Do, asked.Method, asked.Scrub, asked.Tenant, asked.Fingerprint
				c.change(m, n, &r)
				want := c.want
				if op == "survey" && c.name == "swapped between look and open" {
					want = Gone // a survey checks again whether the disk is still the same
				}
				m.expect(r, want, c.detail)
				m.checkUntouched()
			})
		}
	}
}

// checkUntouched checks that the helper has done nothing, and has not opened a node for writing.
func (m *machine) checkUntouched() {
	m.Helper()
	for _, call := range m.calls {
		m.Errorf("it did: %s", call)
	}
}
