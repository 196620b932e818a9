//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/integration/vm"
)

// erasedAtStart leaves a pod's data on the drive until the next pod starts, while the drive is still offered. At that
// start the data is erased, unless it has changed.
func erasedAtStart(in *installation, t *testing.T) {
	// 25 s is the maximum for the start of a container, because the kubelet does not wait longer.
	in.reload(t, strings.NewReplacer(`"both"`, `"start"`, `"2m"`, `"25s"`).Replace(turnoverConfig))
	node := in.left(t, one("leaves-data"))
	both := vm.Pod{UID: "takes-both", Limits: map[string]int64{nvme: int64(len(drives))}}
	in.run(both)
	if r := in.m.Try("cmp", "--bytes", "67108864", node, "/dev/zero"); r.Code != 0 {
		t.Errorf("%s is not zero: %s%s", node, r.Stdout, r.Stderr)
	}
	in.endPod(t, both)
	in.await(t, nvme, int64(len(drives)))

	node = in.left(t, one("leaves-more"))
	both.UID = "takes-both-again"
	in.kubelet.AdmitPod(both)
	in.m.Run("mkfs.ext4", "-qF", "-L", "somebodys", node)
	sum := in.m.Run("sha256sum", node)
	// Either an inspection or the helper notices the file system first.
	if _, _, err := in.kubelet.TryPod(both); err == nil || !strings.Contains(err.Error(), "written by others") && !strings.Contains(err.Error(), device.ErrUnproven.Error()) {
		t.Errorf("start with data of the host: %v", err)
	}
	in.endPod(t, both)
	in.await(t, nvme, int64(len(drives)-1))
	if after := in.m.Run("sha256sum", node); after != sum {
		t.Error("the drive with a host's data was written to")
	}
	in.m.Run("udevadm", "lock", "--device", node, "blkdiscard", "--zeroout", node)
	in.await(t, nvme, int64(len(drives)))
	in.reload(t, turnoverConfig)
}

// left starts a pod that writes a file system and more data, and ends the pod. It returns the device node when metalplugd
// has read the content.
func (s *story) left(t *testing.T, pod vm.Pod) (node string) {
	t.Helper()
	node = s.run(pod)[0]
	s.m.Sh("dd if=/dev/urandom of=" + node + " bs=1M count=60 conv=fsync status=none; mkfs.ext4 -qF " + node)
	s.endPod(t, pod)
	s.m.Eventually("what is left to be known", patience, func() bool {
		return s.m.Try("grep", "--quiet", `"fingerprint":`, "/var/lib/metalplug/state.json").Code == 0
	})
	s.await(t, nvme, int64(len(drives)))
	return node
}
