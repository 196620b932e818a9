// SPDX-License-Identifier: Apache-2.0

package reset_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/reset"
)

// TestKilledWriter kills the helper at random points of 50 erasures. The next helper must erase the same disk, or refuse. No
// other disk may change.
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
	r := target.request(reset.Prepare, "zero")
	r.Tenant, r.Resource = true, "example.org/disk"
	client := asChild(t, "killed")
	client.Peer.Config = target.writeConfig(t, r)
	killed := 0
	for i := range 50 {
		// This file contains the number of kernel calls after which the program kills itself.
		if err := os.WriteFile(client.Peer.Config+".steps", []byte{byte(1 + rand.N(60)), byte(i)}, 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := client.Do(context.WithoutCancel(t.Context()), r)
		if err != nil {
			killed++
		} else if a.Result != reset.OK && a.Result != reset.Busy && a.Result != reset.Failed {
			t.Errorf("erasure %d: %+v", i, a)
		}
		if b := other.content(t); !bytes.Equal(b, bytes.Repeat([]byte("data"), loopSize/4)) {
			t.Fatalf("erasure %d: another disk has changed", i)
		}
	}
	if killed == 0 {
		t.Error("the helper was never killed")
	}
	if a := target.do(t, target.request(reset.Probe, "")); a.Result != reset.OK {
		t.Errorf("a look finds %+v", a)
	}
	if got := target.do(t, r); got.Result != reset.OK || !got.Erased {
		t.Errorf("the last erasure: %+v", got)
	}
	if b := target.content(t); bytes.Count(b, []byte{0}) != loopSize {
		t.Error("the disk is not all zeroes")
	}
	other.unchanged(t)
}
