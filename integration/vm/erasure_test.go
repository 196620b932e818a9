//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

// installedMiB is the size of a drive. It is small, because each drive is written, erased and compared several times.
const installedMiB = 16

// installedDrives returns [drives] with this size.
func installedDrives() (small []vm.Drive) {
	for _, d := range drives {
		small = append(small, vm.Drive{Serial: d.Serial, SizeMiB: installedMiB})
	}
	return small
}

// startTries is how often the test tries to start a container, as in vm.TryPod. In an emulated machine a start may take
// longer than the kubelet waits.
const startTries = 4

// erasedBy checks that the first container of a pod writes and the next pod reads zeroes. Each start must reset each
// controller once. The daemon has no capability, so systemd must start a helper for each request.
func erasedBy(scrub string) func(*installation, *testing.T) {
	return func(in *installation, t *testing.T) {
		in.configure(scrub)
		in.await(t, nvme, int64(len(drives)))
		first := one("writes-before-" + scrub)
		_, cursor := in.journal("")
		node := in.runAndReset(t, first)[0]
		in.checkHelpers(t, cursor, "metalplug-holders", "metalplug-reset")
		in.m.Sh("dd if=/dev/urandom of=" + node + " bs=1M count=14 conv=fsync status=none")
		_, cursor = in.journal("")
		in.endAndErase(t, first)
		in.checkHelpers(t, cursor, "metalplug-reset")
		log, _ := in.journal(cursor)
		t.Log(strings.TrimSpace(erasure(log)))
		if !strings.Contains(erasure(log), scrub) {
			t.Errorf("no line says that the drive was erased by %s:\n%s", scrub, log)
		}
		second := vm.Pod{UID: "reads-after-" + scrub, Limits: map[string]int64{nvme: int64(len(drives))}}
		for _, node := range in.runAndReset(t, second) {
			if r := in.m.Try("cmp", "--bytes", fmt.Sprint(installedMiB<<20), node, "/dev/zero"); r.Code != 0 {
				t.Errorf("%s is not zero: %s%s", node, r.Stdout, r.Stderr)
			}
		}
		if got := in.m.Sh("sed -n 's/^CapEff:.//p' /proc/" + in.pid() + "/status"); got != "0000000000000000" {
			t.Errorf("the daemon has capabilities %s", got)
		}
		in.release(t, second)
	}
}

// runAndReset starts a pod, with the retries of a kubelet. During the successful start, the kernel must have logged one
// reset of each drive's controller. It may have logged more resets if a helper of an earlier attempt was late.
func (in *installation) runAndReset(t *testing.T, pod vm.Pod) []string {
	t.Helper()
	in.kubelet.AdmitPod(pod)
	for try := 1; ; try++ {
		before, began := in.countResets(), in.now(t)
		nodes, _, err := in.kubelet.StartPod(pod)
		if err != nil && try < startTries && strings.Contains(err.Error(), "deadline exceeded") {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		in.note("start of "+pod.UID, fmt.Sprintf("try %d to its end", try), in.now(t).Sub(began))
		if n := in.countResets() - before; n < len(nodes) || try == 1 && n > len(nodes) {
			t.Errorf("try %d: %d controllers came up, not %d", try, n, len(nodes))
		}
		for i, n := range nodes {
			nodes[i] = in.m.Run("readlink", "-f", n)
		}
		return nodes
	}
}

// checkHelpers checks that systemd has started an instance of each of these helpers since a cursor of the journal.
func (in *installation) checkHelpers(t *testing.T, cursor string, helpers ...string) {
	t.Helper()
	for _, helper := range helpers {
		log := in.m.Try("journalctl", "--no-pager", "--output", "cat", "--after-cursor", cursor, "--unit", helper+"@*").Stdout
		if n := strings.Count(log, "Started "+helper+"@"); n == 0 {
			t.Errorf("no %s was started:\n%s", helper, log)
		}
	}
}

// erasure returns the log line about an erasure.
func erasure(log string) string {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "device erased") {
			return line
		}
	}
	return ""
}

// release ends a pod with all drives.
func (in *installation) release(t *testing.T, pod vm.Pod) {
	t.Helper()
	from := in.kubelet.Mark()
	in.kubelet.RemovePod(pod)
	if _, err := in.kubelet.AwaitAllocatable(from, nvme, 0, patience); err != nil {
		t.Errorf("the drives were not withheld: %v", err)
	}
	in.await(t, nvme, int64(len(drives)))
}
