//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/integration/vm"
)

// costDisks is the number of disks of the pod whose start is measured.
const costDisks = 8

// TestStartCost prints how long the installed helpers take before a container with eight disks starts, beside the time that
// systemd needs to start them. It fails only if an answer is wrong.
func TestStartCost(t *testing.T) {
	program := vm.Build(t, "integration/vm/cost", true)
	in := bootInstallable(t, selinux, vm.Options{Drives: installedDrives()})
	in.startKubelet()
	if !in.m.Step(t, "install", func(t *testing.T) { install(in, t) }) {
		return
	}
	in.m.Push(program, "/opt/cost")
	// Debian's policy allows losetup only files with this label.
	disks := in.m.Sh(fmt.Sprintf(`for i in $(seq %d); do
	f=/var/tmp/cost$i.img; truncate -s 64M $f; chcon -t fsadm_tmp_t $f; losetup --find --show $f | sed s,/dev/,,
done; udevadm settle`, costDisks))
	t.Log(in.m.RunFor(10*time.Minute, append([]string{"/opt/cost"}, strings.Fields(disks)...)...))
}
