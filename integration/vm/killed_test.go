//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

// formatting is a script that succeeds when a helper has waited for a controller for longer than an inspection takes.
const formatting = `for p in $(pgrep -x metalplug-reset); do
	if grep -q nvme_ /proc/$p/task/*/stack && sleep 3 && grep -q nvme_ /proc/$p/task/*/stack; then exit 0; fi
done; exit 1`

// killedInFormat kills a helper during a format. The kernel does not interrupt the format, so the helper ends after it,
// without an answer. No pod may get the drive until it was erased again.
func killedInFormat(in *installation, t *testing.T) {
	in.reload(t, strings.Replace(turnoverConfig, `"zero"`, `"format"`, 1))
	pod := one("formats-for-long")
	node := in.run(pod)[0]
	drive := vm.Drive{Serial: in.serialOf(t, node)}
	in.m.Sh("dd if=/dev/urandom of=" + node + " bs=1M count=60 conv=fsync status=none")
	in.m.StallWrites(drive, true)
	defer in.m.StallWrites(drive, false)
	in.m.Sh("dd if=/dev/urandom of=" + node + " bs=4096 count=1 oflag=direct status=none") // this part of the disk can be written
	_, cursor := in.journal("")
	from := in.kubelet.Mark()
	in.kubelet.RemovePod(pod)
	in.m.Eventually("a helper that formats", patience, func() bool { return in.m.Try("sh", "-c", formatting).Code == 0 })
	in.m.Run("pkill", "-KILL", "-x", "metalplug-reset")
	in.m.StallWrites(drive, false)
	in.await(t, nvme, int64(len(drives)))
	if seen := slices.Compact(in.kubelet.Allocatables(from, nvme)); len(seen) != 2 {
		t.Errorf("allocatable went %v instead of down once and up once", seen)
	}
	if r := in.m.Try("cmp", "--bytes", "67108864", node, "/dev/zero"); r.Code != 0 {
		t.Errorf("%s is not zero: %s%s", node, r.Stdout, r.Stderr)
	}
	log, _ := in.journal(cursor)
	for _, want := range []string{"device not cleared", "device erased", "formatted namespace 1, SES 1"} {
		if !strings.Contains(log, want) {
			t.Errorf("the journal does not say %q:\n%s", want, log)
		}
	}
	in.reload(t, turnoverConfig)
}
