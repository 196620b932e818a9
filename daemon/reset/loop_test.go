// SPDX-License-Identifier: Apache-2.0

package reset_test

// The tests in this file use loop devices of the real kernel.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/reset"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/integration/loopback"
)

// loop is a loop device over a file that is full of data.
type loop struct {
	node, sysPath, file string
	seq                 string
}

const (
	loopSize = 48 << 20
	minuteMS = int64(time.Minute / time.Millisecond)
)

func newLoop(t *testing.T) loop {
	t.Helper()
	l := loop{file: filepath.Join(t.TempDir(), "disk")}
	if err := os.WriteFile(l.file, bytes.Repeat([]byte("data"), loopSize/4), 0o600); err != nil {
		t.Fatal(err)
	}
	l.node = loopback.New(t, l.file)
	l.sysPath = "/sys/devices/virtual/block/" + filepath.Base(l.node)
	l.seq = strings.TrimSpace(string(must(os.ReadFile(l.sysPath + "/diskseq"))(t)))
	return l
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (l loop) request(do reset.Do, scrub string) reset.Request {
	return reset.Request{Do: do, Target: device.Target{SysPath: l.sysPath, Class: "node", Identity: map[string]string{"diskseq": l.seq}}, Work: device.Work{Scrub: scrub}, TimeoutMS: minuteMS}
}

// writeConfig writes a configuration with a resource that selects the disk and names the erase method of a request.
func (l loop) writeConfig(t *testing.T, r reset.Request) (file string) {
	t.Helper()
	scrub := "none"
	if slices.Contains([]string{"discard", "zero"}, r.Scrub) { // class node does not support the other methods
		scrub = r.Scrub
	}
	file = filepath.Join(filepath.Dir(l.file), "metalplug.toml")
	text := fmt.Sprintf("[paths]\nrun = %q\n[reset]\nsocket = \"direct\"\n[[resource]]\nname = \"example.org/disk\"\nclass = \"node\"\n"+
		"match = { DEVNAME = %q }\n[resource.reset]\nmethod = \"none\"\nscrub = %q\n", filepath.Join(filepath.Dir(l.file), "run"), l.node, scrub)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// content returns the content of the loop device's file.
func (l loop) content(t *testing.T) []byte { return must(os.ReadFile(l.file))(t) }

func (l loop) unchanged(t *testing.T) {
	t.Helper()
	if b := l.content(t); !bytes.Equal(b, bytes.Repeat([]byte("data"), loopSize/4)) {
		t.Error("the disk has changed")
	}
}

// asChild returns a client that starts a program for each request.
func asChild(t *testing.T, program string) reset.Client {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(filepath.Dir(own), program)
	if err := os.Symlink(own, link); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(link) })
	return reset.Client{Peer: exchange.Peer{Program: program, Socket: exchange.Direct}}
}

func (l loop) do(t *testing.T, r reset.Request) reset.Answer {
	t.Helper()
	c := asChild(t, reset.Program)
	c.Peer.Config = l.writeConfig(t, r)
	if r.Do == reset.Prepare {
		r.Resource = "example.org/disk"
	}
	a, err := c.Do(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestLoopIsErased(t *testing.T) {
	for method, done := range map[string]string{
		"zero":    "wrote zeroes over 50331648 bytes; 12288 blocks of 4096 bytes contained data before, all read as zeroes",
		"discard": "discarded 50331648 bytes; 12288 blocks of 4096 bytes contained data before, all read as zeroes",
	} {
		t.Run(method, func(t *testing.T) {
			l := newLoop(t)
			r := l.request(reset.Prepare, method)
			r.Tenant = true
			got, tree := l.do(t, r), sysfs.At("")
			written := sysfs.Written(&tree, l.sysPath) // no process has written to the disk since the erasure
			if want := (reset.Answer{Result: reset.OK, Report: device.Report{Done: done, Size: loopSize, Erased: true, Written: written, Appearance: l.seq}}); !reflect.DeepEqual(got, want) {
				t.Fatalf("answer is %+v\nwant %+v", got, want)
			}
			if b := l.content(t); bytes.Count(b, []byte{0}) != loopSize {
				t.Error("the disk is not all zeroes")
			}
			again := l.do(t, r)
			if again.Result != reset.OK || !strings.HasSuffix(again.Done, "; the disk was blank, all read as zeroes") {
				t.Errorf("the second answer is %+v", again)
			}
			got = l.do(t, l.request(reset.Probe, ""))
			if !device.LooksBlank(got.Fingerprint) {
				t.Errorf("the fingerprint of the erased disk is %q", got.Fingerprint)
			}
			got.Fingerprint = "" // it begins with a random seed
			if want := (reset.Answer{Result: reset.OK, Report: device.Report{Size: loopSize}}); !reflect.DeepEqual(got, want) {
				t.Errorf("a look finds %+v", got)
			}
		})
	}
}

func TestLoopIsLeftAlone(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *testing.T, l loop, r *reset.Request)
		result reset.Result
		detail string
	}{
		{"claimed", func(t *testing.T, l loop, r *reset.Request) {
			fd := must(unix.Open(l.node, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0))(t)
			t.Cleanup(func() { unix.Close(fd) })
		}, reset.Busy, "cannot be opened exclusively"},
		{"locked by a tool", func(t *testing.T, l loop, r *reset.Request) {
			fd := must(unix.Open(l.node, unix.O_RDONLY|unix.O_CLOEXEC, 0))(t)
			t.Cleanup(func() { unix.Close(fd) })
			if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			r.TimeoutMS = 100
		}, reset.Busy, "is locked by another process"},
		{"another request", func(t *testing.T, l loop, r *reset.Request) {
			l.do(t, l.request(reset.Probe, "")) // this creates the lock file
			locks := must(filepath.Glob(filepath.Join(filepath.Dir(l.file), "run", "locks", "*")))(t)
			fd := must(unix.Open(locks[0], unix.O_RDWR|unix.O_CLOEXEC, 0))(t)
			t.Cleanup(func() { unix.Close(fd) })
			if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
		}, reset.Busy, "another request for "},
		{"no discard for good", func(t *testing.T, l loop, r *reset.Request) { r.Scrub, r.ByHand = "secure-discard", true }, reset.Unsupported, "secure-discard on loop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLoop(t)
			r := l.request(reset.Prepare, "zero")
			r.Tenant = true
			c.change(t, l, &r)
			if got := l.do(t, r); got.Result != c.result || !strings.Contains(got.Detail, c.detail) {
				t.Errorf("answer is %+v, want %v with %q", got, c.result, c.detail)
			}
			l.unchanged(t)
		})
	}
}

// TestLoopWithPartitions checks that a disk with partitions is erased only if a pod has created the partitions. After the
// erasure, the kernel must drop them.
func TestLoopWithPartitions(t *testing.T) {
	l := newLoop(t)
	l.partition(t)
	first := l.sysPath + "/" + filepath.Base(l.node) + "p1"
	if got := l.do(t, l.request(reset.Probe, "")); got.Result != reset.OK || got.Content != "unknown data at byte 0" {
		t.Errorf("a look finds %+v", got)
	}
	r := l.request(reset.Prepare, "zero")
	if got := l.do(t, r); got.Result != reset.Refused || !strings.Contains(got.Detail, "its content is not from a pod on this node") {
		t.Errorf("answer is %+v", got)
	}
	fd := must(unix.Open(l.node+"p1", unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0))(t) // simulates a mount
	r.Tenant = true
	if got := l.do(t, r); got.Result != reset.Busy {
		t.Errorf("answer with a partition in use is %+v", got)
	}
	unix.Close(fd)
	for _, adopted := range []bool{false, true} {
		if adopted { // the disk is blank, and the kernel still shows an old partition; no process has written it since the adoption
			l.partition(t)
			if err := os.WriteFile(l.node, make([]byte, loopSize), 0); err != nil {
				t.Fatal(err)
			}
			r.ByHand, r.Fingerprint = true, l.do(t, l.request(reset.Probe, "")).Fingerprint
		}
		if got := l.do(t, r); got.Result != reset.OK {
			t.Fatalf("adopted: %t: answer is %+v", adopted, got)
		}
		if _, err := os.Stat(first); err == nil {
			t.Error("the kernel still knows the partition")
		}
	}
}

// partition writes an MBR table with one partition. It also adds the partition to the kernel, because some kernels cannot
// read such tables.
func (l loop) partition(t *testing.T) {
	t.Helper()
	fd := must(unix.Open(l.node, unix.O_RDWR|unix.O_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	table := make([]byte, 512)
	table[446+4] = 0x83
	binary.LittleEndian.PutUint32(table[446+8:], 2048)
	binary.LittleEndian.PutUint32(table[446+12:], 4096)
	copy(table[510:], "\x55\xaa")
	must(unix.Pwrite(fd, table, 0))(t)
	part := unix.BlkpgPartition{Start: 1 << 20, Length: 2 << 20, Pno: 1}
	arg := unix.BlkpgIoctlArg{Op: unix.BLKPG_ADD_PARTITION, Datalen: int32(unsafe.Sizeof(part)), Data: (*byte)(unsafe.Pointer(&part))}
	if _, _, err := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKPG, uintptr(unsafe.Pointer(&arg))); err != 0 && err != unix.EBUSY {
		t.Fatal(err)
	}
}
