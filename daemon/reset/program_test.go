// SPDX-License-Identifier: Apache-2.0

package reset

// In a child process, the test program acts as metalplug-reset, as one that is killed, or as one that takes a lock.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/integration/leak"
)

// TestMain makes the test binary act as one of these programs if it was started under the name of that program.
func TestMain(m *testing.M) {
	programs := map[string]func() error{
		Program: func() error {
			return exchange.Serve(unheldHost(exchange.ConfigFile(config.DefaultFile)).reply)
		},
		"locking": holdLock,
		"killed":  serveAndDie,
	}
	serve, ok := programs[filepath.Base(os.Args[0])]
	if !ok {
		os.Exit(leak.Main(m))
	}
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// unheldHost returns this machine. It simulates that no process has a device open, because a test may not have the right to
// inspect all processes.
func unheldHost(file string) *host {
	h := newHost(file)
	h.holders = func(context.Context, config.Config, []cgroup.Number) (cgroup.Answer, error) {
		return cgroup.Answer{}, nil
	}
	return h
}

// serveAndDie serves a request as metalplug-reset does, and kills itself after a number of kernel calls.
func serveAndDie() error {
	const size = 48 << 20 // size of the disk
	file := exchange.ConfigFile("")
	h := unheldHost(file)
	steps, err := os.ReadFile(file + ".steps")
	if err != nil {
		return err
	}
	left := int(steps[0])
	die := func() {
		if left--; left == 0 {
			unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	open, ioctl := h.kernel.open, h.kernel.ioctl
	h.kernel.open = func(path string, flags int) (int, error) { die(); return open(path, flags) }
	h.kernel.ioctl = func(fd int, request uintptr, b []byte) (int, error) {
		die()
		if request == unix.BLKZEROOUT { // the kernel has done only a part of this ioctl
			ranged := func(from, length uint64) (int, error) { return ioctl(fd, request, rangeOf(from, length)) }
			for from := uint64(0); from < size; from += size / 16 {
				if _, err := ranged(from, size/16); err != nil {
					return -1, err
				}
				die()
			}
			return 0, nil
		}
		return ioctl(fd, request, b)
	}
	return exchange.Serve(h.reply)
}

func rangeOf(from, length uint64) []byte {
	return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, from), length)
}

// holdLock takes the lock of a device in a directory, prints the result, and waits until it is killed.
func holdLock() error {
	h := &host{Tree: sysfs.At(""), kernel: theKernel(), locks: os.Args[1]}
	if len(os.Args) > 3 { // with its own sysfs, which systemd 254 mounts for PrivateNetwork=
		if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
			return err
		}
	}
	_, err := h.lockDevice(context.Background(), os.Args[2])
	word := "locked\n"
	if err != nil {
		word = err.Error() + "\n"
	}
	io.WriteString(os.Stdout, word)
	io.Copy(io.Discard, os.Stdin)
	return nil
}

// TestLockAccess checks that other users cannot open a lock, and that a link is refused.
func TestLockAccess(t *testing.T) {
	h := &host{locks: filepath.Join(t.TempDir(), "new")}
	unlock, err := h.lockDevice(t.Context(), "/sys/devices/x")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if info, err := os.Stat(lockFile(h.locks, "/sys/devices/x")); err != nil || info.Mode() != 0o600 {
		t.Errorf("the lock is %v, %v", info, err)
	}
	if err := os.Symlink("/dev/null", lockFile(h.locks, "/sys/devices/link")); err != nil {
		t.Fatal(err)
	}
	if _, err := h.lockDevice(t.Context(), "/sys/devices/link"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link is locked: %v", err)
	}
}

// TestTheKernel tests the calls to the real kernel that work with regular files.
func TestTheKernel(t *testing.T) {
	k := theKernel()
	file := filepath.Join(t.TempDir(), "attribute")
	if err := os.WriteFile(file, []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := k.write(file, "new"); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(file); string(got) != "new\n" || err != nil {
		t.Errorf("it reads %q, %v: written over in one go, not truncated", got, err)
	}
	link := file + "-link"
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if err := k.write(link, "x"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link was written through: %v", err)
	}
	if _, err := k.open(link, unix.O_RDONLY); err != unix.ELOOP {
		t.Errorf("a link was followed: %v", err)
	}
	fd, err := k.open(file, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer k.close(fd)
	if n := k.node(fd); n != (node{}) {
		t.Errorf("a file is the node %+v", n)
	}
	null, err := k.open("/dev/null", unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer k.close(null)
	if n := k.node(null); n != (node{false, "1:3"}) {
		t.Errorf("/dev/null is %+v", n)
	}
	h := &host{Tree: sysfs.At(""), kernel: k}
	if _, err := h.pass(null, nvmeIoctlAdminCmd, &adminCommand{opcode: opIdentify}, make([]byte, identifySize)); err != unix.ENOTTY {
		t.Errorf("an NVMe command on /dev/null: %v", err)
	}
}
