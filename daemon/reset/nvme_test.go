// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"encoding/binary"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestAdminCommand compares adminCommand with the layout that a C compiler gives struct nvme_passthru_cmd.
func TestAdminCommand(t *testing.T) {
	var c adminCommand
	got := []uintptr{
		unsafe.Sizeof(c), unsafe.Offsetof(c.nsid), unsafe.Offsetof(c.cdw2), unsafe.Offsetof(c.metadata), unsafe.Offsetof(c.addr),
		unsafe.Offsetof(c.metadataLen), unsafe.Offsetof(c.dataLen), unsafe.Offsetof(c.cdw10), unsafe.Offsetof(c.cdw15),
		unsafe.Offsetof(c.timeoutMs), unsafe.Offsetof(c.result),
	}
	if want := []uintptr{72, 4, 8, 16, 24, 32, 36, 40, 60, 64, 68}; !slices.Equal(got, want) {
		t.Errorf("size and offsets are %v, want %v", got, want)
	}
	if c.opcode = 0x80; *(*byte)(unsafe.Pointer(&c)) != 0x80 {
		t.Error("the opcode is not at the beginning")
	}
}

// fakeDrive answers admin commands like a controller with namespaces.
type fakeDrive struct {
	*machine
	oacs       uint16
	fna        byte
	sanicap    byte
	flbas, dps byte
	nsids      []uint32
	detached   []uint32 // unattached namespaces, if the controller can manage namespaces
	log        []byte   // sanitize status
	format     func() (uint16, error)
	sanitize   func() (uint16, error)
}

// newDrive returns a drive with two namespaces.
func newDrive(t *testing.T) (d *fakeDrive, first, second *fakeNode) {
	t.Helper()
	m, first := oneNVMe(t)
	second = m.disk(controller0+"/nvme0n2", "259:4", "eui.02")
	m.files(map[string]string{controller0 + "/nvme0n2/nsid": "2\n"})
	second.nsid = 2
	first.fill()
	d = &fakeDrive{machine: m, oacs: 1 << 1, fna: 1 << 2, flbas: 1, nsids: []uint32{1, 2}, log: make([]byte, logSize)}
	d.format = func() (uint16, error) { first.set(0); return 0, nil }
	m.onAdmin = d.admin
	return d, first, second
}

// alone removes the second namespace.
func (d *fakeDrive) alone() *fakeDrive {
	d.remove(secondPath)
	d.remove("/sys/block/nvme0n2")
	d.nsids = []uint32{1}
	return d
}

func (d *fakeDrive) admin(c adminCommand, data []byte) (uint16, error) {
	switch {
	case c.opcode == opIdentify && c.cdw10 == cnsController:
		binary.LittleEndian.PutUint16(data[256:], d.oacs)
		data[524], data[328] = d.fna, d.sanicap
	case c.opcode == opIdentify && c.cdw10 == cnsNamespace:
		data[26], data[29] = d.flbas, d.dps
	case c.opcode == opIdentify && (c.cdw10 == cnsActiveNamespaces || c.cdw10 == cnsNamespaces):
		all := d.nsids
		if c.cdw10 == cnsNamespaces {
			all = d.detached
		}
		for i, nsid := range all {
			binary.LittleEndian.PutUint32(data[4*i:], nsid)
		}
	case c.opcode == opGetLogPage && c.cdw10 == 0x007f0081:
		copy(data, d.log)
	case c.opcode == opFormatNVM:
		return d.format()
	case c.opcode == opSanitize:
		return d.sanitize()
	}
	return 0, nil
}

// state sets the sanitize status.
func (d *fakeDrive) state(status, progress uint16, action, seconds uint32) {
	binary.LittleEndian.PutUint16(d.log, progress)
	binary.LittleEndian.PutUint16(d.log[2:], status)
	binary.LittleEndian.PutUint32(d.log[4:], action)
	for at := 8; at < 20; at += 4 {
		binary.LittleEndian.PutUint32(d.log[at:], seconds)
	}
}

// commands returns the executed admin commands that change a drive.
func (d *fakeDrive) commands() (all []string) {
	for _, call := range d.calls {
		if strings.HasPrefix(call, "admin ") {
			all = append(all, call)
		}
	}
	return all
}

const secondPath = controller0 + "/nvme0n2"

const (
	formatted     = "admin nvme0n1 opcode 0x80 nsid 0x1 cdw10 0x201 cdw11 0x0 timeout 600000"
	formattedKeys = "admin nvme0n1 opcode 0x80 nsid 0x1 cdw10 0x401 cdw11 0x0 timeout 600000"
	blockErase    = "admin nvme0n1 opcode 0x84 nsid 0x0 cdw10 0x2 cdw11 0x0 timeout 5000"
	cryptoErase   = "admin nvme0n1 opcode 0x84 nsid 0x0 cdw10 0x4 cdw11 0x0 timeout 5000"
	overwrite     = "admin nvme0n1 opcode 0x84 nsid 0x0 cdw10 0x13 cdw11 0x0 timeout 5000"
)

// TestEraseCommands checks which commands reach a drive, and how their results are reported.
func TestEraseCommands(t *testing.T) {
	for _, c := range []struct {
		name, method string
		change       func(d *fakeDrive, first *fakeNode, r *Request)
		want         Result
		text         string
		commands     []string
	}{
		{
			"user data", "format", func(*fakeDrive, *fakeNode, *Request) {}, OK,
			"formatted namespace 1, SES 1, LBA format 1 kept; 1024 blocks of 4096 bytes contained data before, all read as zeroes",
			[]string{formatted},
		},
		{
			"cryptographic", "crypto-erase", func(d *fakeDrive, first *fakeNode, r *Request) {
				d.flbas, d.dps = 0x43, 0x0a
				d.format = func() (uint16, error) { first.noise(); return 0, nil }
			}, OK, "SES 2, LBA format 35 kept; 1024 blocks of 4096 bytes contained data before, all have changed, 1024 have random content",
			[]string{"admin nvme0n1 opcode 0x80 nsid 0x1 cdw10 0x2543 cdw11 0x0 timeout 600000"},
		},
		{
			"ignored", "crypto-erase", func(d *fakeDrive, first *fakeNode, r *Request) {
				d.format = func() (uint16, error) { return 0, nil }
			}, Failed, "the content at byte 0 has not changed",
			[]string{formattedKeys},
		},
		{
			"all settings are kept", "crypto-erase", func(d *fakeDrive, first *fakeNode, r *Request) {
				d.flbas, d.dps = 0x7f, 0x0f
				d.format = func() (uint16, error) { first.noise(); return 0, nil }
			}, OK, "SES 2, LBA format ",
			[]string{"admin nvme0n1 opcode 0x80 nsid 0x1 cdw10 0x35ff cdw11 0x0 timeout 600000"},
		},
		{"no such command", "format", func(d *fakeDrive, first *fakeNode, r *Request) { d.oacs = 0 }, Unsupported, "has no Format command", nil},
		{"no keys", "crypto-erase", func(d *fakeDrive, first *fakeNode, r *Request) { d.fna = 0 }, Unsupported, "has no cryptographic erasure", nil},
		{"hits the other one too", "format", func(d *fakeDrive, first *fakeNode, r *Request) {
			d.fna, r.Together = 1<<0, []string{secondPath}
		}, Refused, `nvme0n2 would be erased too; erase nvme0n1 alone with scrub = "zero"`, nil},
		{"erases the other one too", "format", func(d *fakeDrive, first *fakeNode, r *Request) { d.fna = 1 << 1 }, Refused, "nvme0n2 would be erased too", nil},
		{
			"erases all, and is alone", "format", func(d *fakeDrive, first *fakeNode, r *Request) { d.alone().fna = 1 << 1 },
			OK, "formatted namespace 1",
			[]string{formatted},
		},
		{"a namespace that is nowhere", "format", func(d *fakeDrive, first *fakeNode, r *Request) {
			d.alone().fna, d.nsids = 1<<1, []uint32{1, 7}
		}, Refused, "namespace 7 would be erased too", nil},
		{"a namespace without a disk", "format", func(d *fakeDrive, first *fakeNode, r *Request) {
			d.fna = 1 << 1
			d.alone().files(map[string]string{controller0 + "/ng0n3/subsystem": in(controller0+"/ng0n3", "/sys/class/nvme-generic")})
		}, Refused, "cannot determine whether ng0n3, which has no disk, is used", nil},
		{"over a network", "format", func(d *fakeDrive, first *fakeNode, r *Request) {
			d.files(map[string]string{controller0 + "/transport": "tcp\n"})
		}, Refused, "controller nvme0 is connected by tcp", nil},
		{"invalid format", "format", func(d *fakeDrive, first *fakeNode, r *Request) {
			d.format = func() (uint16, error) { return 0x410a, nil }
		}, Failed, "format nvme0n1: NVMe status 0x10a", []string{formatted}},
		{"invalid opcode", "format", func(d *fakeDrive, first *fakeNode, r *Request) {
			d.format = func() (uint16, error) { return 0x4001, nil }
		}, Unsupported, "NVMe status 0x001: invalid command opcode", []string{formatted}},
		{"reset meanwhile", "format", func(d *fakeDrive, first *fakeNode, r *Request) {
			d.format = func() (uint16, error) { return 0, unix.EINTR }
		}, Failed, "the controller was reset in the meantime", []string{formatted}},
		{"smaller than before", "format", func(d *fakeDrive, first *fakeNode, r *Request) {
			d.format = func() (uint16, error) { first.data = make([]byte, 1<<20); return 0, nil }
		}, Failed, "the size of nvme0n1 was 4194304 bytes (blocks of 512), and is now 1048576 bytes (blocks of 512)", []string{formatted}},
		{"done at once", "sanitize", func(d *fakeDrive, first *fakeNode, r *Request) {}, OK, "sanitized the NVM subsystem, action 2; 1024 blocks of 4096 bytes contained data before, all read as zeroes", []string{blockErase}},
		{"keys only", "sanitize", func(d *fakeDrive, first *fakeNode, r *Request) { d.sanicap = sanitizeCrypto | sanitizeOverwrite }, OK, "sanitized", []string{cryptoErase}},
		{"overwriting only", "sanitize", func(d *fakeDrive, first *fakeNode, r *Request) { d.sanicap = sanitizeOverwrite }, OK, "sanitized", []string{overwrite}},
		{"a namespace that is attached nowhere", "sanitize", func(d *fakeDrive, first *fakeNode, r *Request) { d.oacs, d.detached = d.oacs|1<<3, []uint32{1, 9} }, Refused, "namespace 9 would be erased too", nil},
		{"nothing of the kind", "sanitize", func(d *fakeDrive, first *fakeNode, r *Request) { d.sanicap = 0 }, Unsupported, "has no Sanitize command", nil},
		{"done before, not written since", "sanitize", func(d *fakeDrive, first *fakeNode, r *Request) {
			d.state(0x101, 65535, actBlockErase, 1)
			first.set(0)
		}, OK, "sanitized the NVM subsystem, action 2; the disk was blank", nil},
		{"done before, not written since, and not blank", "sanitize", func(d *fakeDrive, first *fakeNode, r *Request) { d.state(0x101, 65535, actBlockErase, 1) }, OK, "sanitized", []string{blockErase}},
		{"failed before, and the next keeps all", "sanitize", func(d *fakeDrive, first *fakeNode, r *Request) {
			d.state(3, 100, actBlockErase, 1)
			d.sanitize = func() (uint16, error) { d.state(1, 65535, actBlockErase, 1); return 0, nil }
		}, Failed, "may be old, because it was not read before the erasure", []string{blockErase}},
		{"done before, written since", "sanitize", func(d *fakeDrive, first *fakeNode, r *Request) { d.state(1, 65535, actBlockErase, 1) }, OK, "sanitized", []string{blockErase}},
		{"fails", "sanitize", func(d *fakeDrive, first *fakeNode, r *Request) {
			d.sanitize = func() (uint16, error) { d.state(3, 100, actBlockErase, 1); return 0, nil }
		}, Failed, "has failed, and the disk refuses all reads and writes", []string{blockErase}},
		{"failed before, again", "sanitize", func(d *fakeDrive, first *fakeNode, r *Request) { d.state(3, 100, actBlockErase, 1) }, OK, "the disk could not be read before", []string{blockErase}},
		{"not possible now", "sanitize", func(d *fakeDrive, first *fakeNode, r *Request) {
			d.sanitize = func() (uint16, error) { return 0x411b, nil }
		}, Failed, "sanitize prohibited while a persistent memory region is enabled", []string{blockErase}},
		{"lost its head", "sanitize", func(d *fakeDrive, first *fakeNode, r *Request) {
			d.sanitize = func() (uint16, error) { d.state(1, 65535, actBlockErase, 1); return 0, nil }
		}, Failed, "the content at byte 0 has not changed", []string{blockErase}},
	} {
		t.Run(c.method+"/"+c.name, func(t *testing.T) {
			d, first, _ := newDrive(t)
			if c.method == "sanitize" {
				d.alone().sanicap = sanitizeBlock | sanitizeCrypto
			}
			d.sanitize = func() (uint16, error) {
				d.state(1, 65535, actBlockErase, 1)
				first.set(0)
				return 0, nil
			}
			r := eraseOf0(c.method)
			c.change(d, first, &r)
			d.expect(r, c.want, c.text)
			if got := d.commands(); !reflect.DeepEqual(got, c.commands) {
				t.Errorf("commands are %q, want %q", got, c.commands)
			}
		})
	}
}

// TestSanitizeHitsAll checks that the helper refuses a sanitize operation if the drive has another namespace, even a blank
// one, because a sanitize operation erases all namespaces. The helper must refuse before it reads the disk, which takes
// hours.
func TestSanitizeHitsAll(t *testing.T) {
	d, first, _ := newDrive(t)
	d.sanicap = sanitizeBlock
	first.enlarge().noiseAt(45<<20, 4096)
	first.onRead = func(_ int64, length int) {
		if length == stretchSize {
			t.Error("all of the disk is read")
		}
	}
	r := eraseOf0("sanitize")
	r.Together = []string{secondPath}
	if got := d.ask(r); got.Result != Refused || got.Detail != `nvme0n2 would be erased too; erase nvme0n1 alone with scrub = "zero"` || d.commands() != nil {
		t.Errorf("answer is %+v, it did %q", got, d.commands())
	}
}

// TestSanitizeIsVerifiedInFull checks that a disk that was unreadable before its sanitize operation is read in full
// afterwards, because any block may have held data.
func TestSanitizeIsVerifiedInFull(t *testing.T) {
	d, first, _ := newDrive(t)
	d.alone().sanicap = sanitizeBlock
	first.enlarge()
	d.state(3, 100, actBlockErase, 1)
	d.sanitize = func() (uint16, error) { d.state(1, 65535, actBlockErase, 1); return 0, nil }
	read := 0
	first.onRead = func(_ int64, length int) {
		if length == stretchSize {
			read += length
		}
	}
	if got := d.ask(eraseOf0("sanitize")); got.Result != OK || read != len(first.data) {
		t.Errorf("%d of %d bytes are read, answer is %+v", read, len(first.data), got)
	}
}

// TestSanitizeContinues checks a sanitize operation that takes longer than the time limit. The helper must report that the
// operation is running, must not start it twice, and must verify the disk at the end. Until then, the disk cannot be read.
func TestSanitizeContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, first, _ := newDrive(t)
		d.alone().sanicap = sanitizeBlock
		d.sanitize = func() (uint16, error) {
			began := time.Now()
			first.readError, first.readHook = unix.EIO, nil
			d.onAdmin = func(c adminCommand, data []byte) (uint16, error) {
				if since := time.Since(began); since < 200*time.Second {
					d.state(2, uint16(since*65536/(200*time.Second)), actBlockErase, 200)
				} else {
					d.state(1, 65535, actBlockErase, 200)
					first.set(0)
					first.readError = nil
				}
				return d.admin(c, data)
			}
			return 0, nil
		}
		r := eraseOf0("sanitize")
		percent := regexp.MustCompile(`^the sanitize operation on nvme0n1 is in progress \((2[5-9]|30) %\): repeat the request later$`)
		got := d.ask(r)
		if !percent.MatchString(got.Detail) || !reflect.DeepEqual(got, Answer{Result: Running, Detail: got.Detail}) {
			t.Errorf("answer is %+v", got)
		}
		if got := d.ask(probeOf0()); got.Result != Running {
			t.Errorf("a look finds %+v", got)
		}
		for range 2 {
			got = d.ask(r)
			if got.Result != Running {
				t.Fatalf("answer is %+v", got)
			}
		}
		if got = d.ask(r); got.Result != OK || !strings.Contains(got.Done, "all read as zeroes") {
			t.Errorf("the last answer is %+v", got)
		}
		if got := d.commands(); !slices.Equal(got, []string{blockErase}) {
			t.Errorf("commands are %q", got)
		}
	})
}

// TestPartialFormat checks that an erasure fails if the drive formats only the blocks that were read before.
func TestPartialFormat(t *testing.T) {
	for _, scrub := range []string{"format", "crypto-erase"} {
		d, n, _ := newDrive(t)
		n.enlarge()
		n.noiseAt(0, edgeSize)
		n.noiseAt(64<<20, edgeSize)
		r := eraseOf0(scrub)
		r.Fingerprint = printOf0(d.alone().machine)
		probed := randomOffsets(int64(len(n.data)), seedIn(r.Fingerprint))
		for at := int64(edgeSize); at < 64<<20; at += blockSize {
			if !slices.Contains(probed, at) {
				n.noiseAt(at, blockSize)
			}
		}
		d.format = func() (uint16, error) {
			clear(n.data[:edgeSize])
			clear(n.data[64<<20:])
			return 0, nil
		}
		if got := d.full(r); got.Result != Failed || !strings.Contains(got.Detail, "may be old, because it was not read before") || got.Erased {
			t.Errorf("%s: answer is %+v", scrub, got)
		}
	}
}
