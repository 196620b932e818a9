// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/device"
)

// sharer has the answers of a drive with several controllers about namespace 1.
type sharer struct {
	of                 uint32 // the only namespace with these answers, or 0 for all
	cmic, nmic, rescap byte
	oncs               uint16
	attached, all      []uint16 // CNS 12h and 13h
	attachedStatus     uint16
	allStatus          uint16
	registered         []uint16
	holder             uint16 // the controller with a reservation of type 1
	plain              bool   // the host identifier has 8 bytes
	reportStatus       uint16
	reportError        error
	asked              []string
}

// on adds the answers to a machine. The machine's own drive answers all other commands.
func (s *sharer) on(m *machine) {
	before := m.onAdmin
	m.onAdmin = func(c adminCommand, data []byte) (status uint16, err error) {
		if before != nil {
			status, err = before(c, data)
		}
		switch {
		case c.opcode != opIdentify:
		case c.cdw10 == cnsController:
			data[76] |= s.cmic
			binary.LittleEndian.PutUint16(data[520:], s.oncs)
		case c.cdw10 == cnsNamespace && (s.of == 0 || s.of == c.nsid):
			data[30], data[31] = s.nmic, s.rescap
		case c.cdw10 == cnsAttachedControllers:
			s.asked = append(s.asked, fmt.Sprintf("attached to %d", c.nsid))
			return s.attachedStatus, controllerList(data, s.attached)
		case c.cdw10 == cnsControllers:
			s.asked = append(s.asked, "all")
			return s.allStatus, controllerList(data, s.all)
		}
		return status, err
	}
	m.onIO = s.report
}

func controllerList(data []byte, ids []uint16) error {
	binary.LittleEndian.PutUint16(data, uint16(len(ids)))
	for i, id := range ids {
		binary.LittleEndian.PutUint16(data[2+2*i:], id)
	}
	return nil
}

func (s *sharer) report(c adminCommand, data []byte) (uint16, error) {
	s.asked = append(s.asked, fmt.Sprintf("report %d of %d, %d", c.cdw10, c.nsid, c.cdw11))
	if s.reportError != nil || s.reportStatus != 0 {
		return s.reportStatus, s.reportError
	}
	head, entry := 64, 64
	if s.plain {
		head, entry = 24, 24
	}
	if s.plain != (c.cdw11 == 0) {
		return 0x4018, nil
	}
	binary.LittleEndian.PutUint16(data[5:], uint16(len(s.registered)))
	data[4] = byte(min(s.holder, 1))
	for i, id := range s.registered {
		at := head + i*entry
		if at+entry > len(data) {
			break
		}
		binary.LittleEndian.PutUint16(data[at:], id)
		if id == s.holder {
			data[at+2] = 1
		}
	}
	return 0, nil
}

// TestShared checks that a disk is refused if another host has attached its namespace or is registered with it. This applies
// to each inspection, erasure and reset.
func TestShared(t *testing.T) {
	many := make([]uint16, 100)
	for i := range many {
		many[i] = 1
	}
	for _, c := range []struct {
		name   string
		drive  sharer
		detail string // expected detail, or empty if no other host uses the disk
	}{
		{"one controller", sharer{}, ""},
		{"attached to ours", sharer{nmic: 1, cmic: 2, attached: []uint16{1}, all: []uint16{1, 77}}, ""},
		{"attached to another host", sharer{nmic: 1, cmic: 2, attached: []uint16{1, 77}}, "nvme0n1 is shared: controller 77, which is not bound to this host's driver nvme, also has namespace 1; detach it there"},
		{"attached to a virtual function", sharer{nmic: 1, cmic: 2 | 4, attached: []uint16{65, 66, 1}}, "nvme0n1 is shared: controller 65, 66, "},
		{"another host, whatever CMIC says", sharer{nmic: 1, attached: []uint16{1, 77}}, "nvme0n1 is shared: controller 77, "},
		{"attached, a full list", sharer{nmic: 1, attached: []uint16{2: 5, 2046: 9}}, "nvme0n1 is shared: controller 0, 0, 5, "},
		{"no list of its own, all ours", sharer{nmic: 1, cmic: 2, attachedStatus: 0x4002, all: []uint16{1}}, ""},
		{"no list of its own, another controller", sharer{nmic: 1, cmic: 2, attachedStatus: 0x4002, all: []uint16{1, 7}}, "cannot determine whether another host uses nvme0n1: controller 7 of the NVM subsystem is not bound"},
		{"no list at all", sharer{nmic: 1, cmic: 2, attachedStatus: 0x4002, allStatus: 0x4002}, "cannot determine whether another host uses nvme0n1: cannot determine whether other hosts use a controller"},
		{"no list, the only controller", sharer{nmic: 1, attachedStatus: 0x4002}, ""},
		{"a list that fails", sharer{nmic: 1, attachedStatus: 0x4006}, "cannot determine whether another host uses nvme0n1: identify (CNS 0x12): NVMe status 0x006"},

		{"no host is registered", sharer{oncs: 1 << 5, rescap: 0xff}, ""},
		{"another host is registered", sharer{oncs: 1 << 5, rescap: 0xff, registered: []uint16{2}}, "nvme0n1 is reserved: other hosts are registered with namespace 1 (controllers: 2); release it there"},
		{"another host holds it", sharer{oncs: 1 << 5, rescap: 0xff, registered: []uint16{1, 2}, holder: 2}, "nvme0n1 is reserved: other hosts are registered with namespace 1 (controllers: 2)"},
		{"another host holds it, short identifiers", sharer{oncs: 1 << 5, rescap: 0xff, plain: true, registered: []uint16{1, 2}, holder: 2}, "nvme0n1 is reserved: other hosts are registered with namespace 1 (controllers: 2)"},
		{"a host that has no controller now", sharer{oncs: 1 << 5, registered: []uint16{0xffff}}, "nvme0n1 is reserved: other hosts are registered with namespace 1 (controllers: 65535)"},
		{"registered by this host", sharer{oncs: 1 << 5, rescap: 0xff, registered: []uint16{1}, holder: 1}, ""},
		{"a reservation without a registrant", sharer{oncs: 1 << 5, holder: 2}, "nvme0n1 is reserved: other hosts are registered with namespace 1 (controllers: unknown, with a reservation of type 1)"},
		{"more than fit", sharer{oncs: 1 << 5, registered: many}, "nvme0n1 is reserved: other hosts are registered with namespace 1 (controllers: 37 that are not listed)"},
		{"reservations without the command", sharer{oncs: 1 << 5, reportStatus: 0x4001}, ""},
		{"reservations, and the command fails", sharer{oncs: 1 << 5, rescap: 1, reportStatus: 0x4001}, "cannot determine whether another host uses nvme0n1: reservation report: NVMe status 0x001"},
		{"the report fails", sharer{oncs: 1 << 5, reportStatus: 0x4006}, "cannot determine whether another host uses nvme0n1: reservation report: NVMe status 0x006"},
		{"the report is denied", sharer{oncs: 1 << 5, reportError: unix.EACCES}, "cannot determine whether another host uses nvme0n1: reservation report: permission denied"},
	} {
		methods, classes := []string{"", "zero"}, []string{"nvme"}
		if c.name == "attached to another host" || c.name == "another host is registered" || c.name == "one controller" {
			methods = []string{"", "survey", "discard", "secure-discard", "zero", "format", "crypto-erase", "sanitize", "nvme-controller", "pci", "pci:flr"}
			classes = append(classes, "node")
		}
		for _, method := range methods {
			for _, class := range classes {
				t.Run(c.name+"/"+method+"/"+class, func(t *testing.T) {
					d, first, _ := newDrive(t)
					d.selectsAll()
					d.files(map[string]string{controller0 + "/cntlid": "1\n"})
					d.alone().sanicap = sanitizeBlock
					d.sanitize = func() (uint16, error) {
						first.set(0)
						d.state(1, 65535, actBlockErase, 1)
						return 0, nil
					}
					s := c.drive
					s.on(d.machine)
					r := eraseOf0(method)
					r.Class = class
					switch {
					case method == "":
						r.Do, r.Tenant = Probe, false
						first.set(0)
					case method == "survey": // it finds data in the first block, so it does not check again at its end
						r.Do, r.Work = Survey, device.Work{}
					case slices.Contains([]string{"nvme-controller", "pci", "pci:flr"}, method):
						r.Method, r.Scrub = method, ""
					}
					got := d.ask(r)
					if c.detail == "" {
						if got.Result != OK {
							t.Errorf("answer is %+v", got)
						}
						return
					}
					if got.Result != Busy || !strings.HasPrefix(got.Detail, c.detail) {
						t.Errorf("answer is %+v, want %q", got, c.detail)
					}
					if method != "" && first.blank() {
						t.Error("it was erased")
					}
					d.checkUntouched()
				})
			}
		}
	}
}

// TestSharedByPaths checks that both controllers of a namespace with two paths count as controllers of this host.
func TestSharedByPaths(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *machine)
		want   Result
		detail string
	}{
		"both": {func(*machine) {}, OK, ""},
		"one given to a virtual machine": {func(m *machine) {
			m.remove(controller1)
			m.remove(subsystem0 + "/nvme1")
		}, Busy, "nvme0n1 is shared: controller 2, which is not bound to this host's driver nvme, also has namespace 1; detach it there"},
		"one of which nothing is known": {func(m *machine) { m.remove(controller1 + "/cntlid") }, Busy, "the ID of controller nvme1 is not known: read " + controller1 + "/cntlid"},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := twoPaths(t)
			m.files(map[string]string{controller0 + "/cntlid": "1\n", controller1 + "/cntlid": "2\n"})
			s := &sharer{nmic: 1, cmic: 2, attached: []uint16{1, 2}, oncs: 1 << 5, registered: []uint16{1}}
			s.on(m)
			c.change(m)
			got := m.ask(Request{Do: Probe, Target: device.Target{SysPath: headPath, Class: "nvme", Identity: byWWID("eui.09")}})
			if got.Result != c.want || !strings.HasPrefix(got.Detail, c.detail) {
				t.Errorf("answer is %+v", got)
			}
		})
	}
}

// TestSharedAtTheLastMoment attaches the namespace to another host, or exports the disk, while an erasure or a survey reads
// it. The helper must notice this although an earlier check succeeded.
func TestSharedAtTheLastMoment(t *testing.T) {
	for name, happens := range map[string]func(m *machine, s *sharer){
		"attached": func(_ *machine, s *sharer) { s.nmic, s.attached = 1, []uint16{1, 77} },
		"reserved": func(_ *machine, s *sharer) { s.registered = []uint16{77} },
		"exported": func(m *machine, _ *sharer) { m.export("//dev/nvme0n1") },
	} {
		for _, method := range []string{"zero", "discard", "format", "survey"} {
			t.Run(name+"/"+method, func(t *testing.T) {
				d, first, _ := newDrive(t)
				d.files(map[string]string{controller0 + "/cntlid": "1\n"})
				s := &sharer{oncs: 1 << 5}
				s.on(d.machine)
				writes := func(call string) bool { return call == "open nvme0n1 for writing" }
				first.readHook = func() {
					if method == "survey" || slices.ContainsFunc(d.calls, writes) { // the disk was inspected, and the read of the whole disk has begun
						happens(d.machine, s)
					}
				}
				r := eraseOf0(method)
				if method == "survey" {
					r = surveyOf0(0)
					first.set(0)
				}
				if got := d.ask(r); got.Result != Busy || method != "survey" && first.blank() {
					t.Errorf("answer is %+v", got)
				}
			})
		}
	}
}

// TestSharedIsAskedDuringASanitize waits for the end of a sanitize operation. During this operation, not even reservations
// can be read.
func TestSharedIsAskedDuringASanitize(t *testing.T) {
	d, first, _ := newDrive(t)
	d.alone().files(map[string]string{controller0 + "/cntlid": "1\n"})
	d.sanicap = sanitizeBlock
	d.state(0x101, 65535, actBlockErase, 1)
	first.set(0)
	s := &sharer{oncs: 1 << 5, rescap: 1, reportStatus: 0x401d}
	s.on(d.machine)
	if got := d.ask(eraseOf0("sanitize")); got.Result != OK {
		t.Errorf("answer is %+v", got)
	}
	if len(s.asked) == 0 || d.commands() != nil {
		t.Errorf("asked %q, did %q", s.asked, d.calls)
	}
}
