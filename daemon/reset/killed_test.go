// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/exchange"
)

// TestKilledWriter kills the helper at random points of 50 erasures. The next helper erases the same disk, or refuses. No
// other disk is ever touched.
func TestKilledWriter(t *testing.T) {
	target, other := newLoop(t), newLoop(t)
	fd := must(unix.Open(target.node, unix.O_RDWR|unix.O_CLOEXEC, 0))(t)
	noise := make([]byte, loopSize)
	rand.NewChaCha8([32]byte{1}).Read(noise)
	_, err := unix.Pwrite(fd, noise, 0)
	unix.Close(fd)
	if err != nil {
		t.Fatal(err)
	}
	r := target.request(Prepare, "zero")
	r.Tenant, r.Resource = true, "example.org/disk"
	client := asChild(t, "killed")
	client.Peer.Config = target.configured(t, r)
	killed := 0
	for i := range 50 {
		// The program ends itself after as many calls of the kernel as the number of its file says.
		if err := os.WriteFile(client.Peer.Config+".steps", []byte{byte(1 + rand.N(60)), byte(i)}, 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := client.Do(context.WithoutCancel(t.Context()), r)
		if err != nil {
			killed++
		} else if a.Result != OK && a.Result != Busy && a.Result != Failed {
			t.Errorf("erasure %d: %+v", i, a)
		}
		if b := other.content(t); !bytes.Equal(b, bytes.Repeat([]byte("data"), loopSize/4)) {
			t.Fatalf("erasure %d: another disk has changed", i)
		}
	}
	if killed == 0 {
		t.Error("the helper was never killed")
	}
	if a := target.do(t, target.request(Probe, "")); a.Result != OK {
		t.Errorf("a look finds %+v", a)
	}
	if got := target.do(t, r); got.Result != OK || !got.Erased {
		t.Errorf("the last erasure: %+v", got)
	}
	if b := target.content(t); bytes.Count(b, []byte{0}) != loopSize {
		t.Error("the disk is not all zeroes")
	}
	other.unchanged(t)
}

// killing serves as the program does, and kills itself after so many calls of the kernel.
func killing() error {
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
		if request == blkZeroOut { // and in between, of which the kernel has done a part
			ranged := func(from, length uint64) (int, error) { return ioctl(fd, request, rangeOf(from, length)) }
			for from := uint64(0); from < loopSize; from += loopSize / 16 {
				if _, err := ranged(from, loopSize/16); err != nil {
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
