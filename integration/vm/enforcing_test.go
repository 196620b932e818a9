//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

// enforcing makes the kernel enforce its policy from the start.
const enforcing = "selinux=1 security=selinux enforcing=1 " + everyDenial

// everyDenial makes the kernel keep all reports of denials. Without auditd, each denial is a line of the kernel log. By
// default, the kernel drops lines after the first ten in 5 s.
const everyDenial = "audit_backlog_limit=8192 sysctl.kernel.printk_ratelimit=0 log_buf_len=4M"

// testLabels checks that the daemon runs in its domain, and that its files and sockets have its labels.
func testLabels(in *installation, t *testing.T) {
	if got := in.m.Sh("tr -d '\\0' </proc/" + in.pid() + "/attr/current"); got != "system_u:system_r:metalplugd_t:s0" {
		t.Errorf("metalplugd runs as %s", got)
	}
	for path, label := range map[string]string{
		"/usr/sbin/metalplugd":                       "metalplugd_exec_t",
		"/usr/libexec/metalplug/metalplug-reset":     "metalplug_reset_exec_t",
		"/usr/libexec/metalplug/metalplug-unit":      "metalplug_unit_exec_t",
		"/etc/metalplug":                             "metalplugd_etc_t",
		"/var/lib/metalplug":                         "metalplugd_var_lib_t",
		"/run/metalplug":                             "metalplugd_runtime_t",
		"/run/metalplug/reset.sock":                  "metalplugd_runtime_t",
		"/run/metalplug/control.sock":                "metalplugd_runtime_t",
		"/run/cdi":                                   "metalplugd_cdi_t",
		"/run/metalplug-mounts":                      "metalplug_mounts_t",
		"/run/metalplug-locks":                       "metalplug_locks_t",
		"/var/lib/kubelet/device-plugins/mp-*.sock":  "metalplugd_plugin_sock_t",
		"/sys/class/nvme/*/reset_controller":         "metalplug_sysfs_reset_t",
		"/sys/class/nvme/*/device/reset_method":      "metalplug_sysfs_reset_t",
		"/usr/lib/systemd/system/metalplugd.service": "metalplugd_unit_t",
	} {
		for line := range strings.Lines(in.m.Sh("stat -c '%C %n' " + path)) {
			if !strings.Contains(line, ":"+label+":") {
				t.Errorf("want %s: %s", label, line)
			}
		}
	}
}

// createUnlabelled creates two unlabelled files, which exist until the reboot. One is the file of a loop device, and
// metalplug-reset checks loop devices before each erasure. The other is a directory in an unlabelled file system. A process has
// this directory open, so metalplug-holders inspects it at each start of a container.
func createUnlabelled(in *installation, t *testing.T) {
	// The policy does not cover the test's own programs.
	in.m.Sh(`trap 'setenforce 1' EXIT
		setenforce 0
		truncate -s 16M /var/tmp/loop.img
		loop=$(losetup --find --show /var/tmp/loop.img)
		mkfs.ext4 -q $loop
		mkdir -p /mnt/unlabelled
		mount $loop /mnt/unlabelled`)
	if mode := in.m.Run("getenforce"); mode != "Enforcing" {
		t.Fatalf("SELinux is %s", mode)
	}
	if label := in.m.Run("stat", "-c", "%C", "/mnt/unlabelled"); !strings.Contains(label, ":unlabeled_t:") {
		t.Errorf("the label of a new file system is %s", label)
	}
	p := in.m.Start("sh", "-c", "exec 5</mnt/unlabelled; echo open; exec sleep infinity")
	if _, err := p.Await(0, patience, func(l vm.Line) bool { return l.Text == "open" }); err != nil {
		t.Fatal(err)
	}
}

// testReboot checks that the service runs with the same drives after a boot. During the boot, process 1 loads the policy
// module. Because of [startedByEvent], the appearance of a drive starts the service, perhaps after the end of the boot.
func testReboot(in *installation, t *testing.T) {
	ids := in.healthy(nvme)
	in.m.Reboot()
	if mode := in.m.Run("getenforce"); mode != "Enforcing" {
		t.Fatalf("SELinux is %s", mode)
	}
	in.m.Eventually("metalplugd", patience, func() bool { return in.show("SubState") == "running" })
	in.active(t)
	in.kubelet = in.m.StartKubelet()
	in.await(t, nvme, int64(len(drives)))
	if got := in.healthy(nvme); !slices.Equal(got, ids) {
		t.Errorf("devices were %v and are %v", ids, got)
	}
}

// audit has the kernel's reports about SELinux since the boot. ours has denials for metalplug's domains, or for other
// domains on metalplug's objects. others has all other denials. lost has messages about reports that the kernel could not
// record.
type audit struct{ ours, others, lost []string }

func (in *installation) audit() (a audit) {
	for line := range in.kernelLog() {
		_, what, denied := strings.Cut(line, "avc:  denied")
		switch {
		case denied && strings.Contains(what, "metalplug"):
			a.ours = append(a.ours, what)
		case denied:
			a.others = append(a.others, what)
		case lostLine.MatchString(line):
			a.lost = append(a.lost, line)
		}
	}
	return a
}

// kernelLog yields the lines of the kernel log and of its audit since the boot.
func (in *installation) kernelLog() iter.Seq[string] {
	log := in.m.Try("journalctl", "--no-pager", "--boot", "--output", "cat", "_TRANSPORT=audit", "+", "_TRANSPORT=kernel", "+", "_COMM=systemd-journal")
	text := in.m.Try("dmesg").Stdout + log.Stdout
	return func(yield func(string) bool) {
		for line := range strings.Lines(text) {
			if !yield(strings.TrimSpace(line)) {
				return
			}
		}
	}
}

// lostLine matches the messages of the kernel (audit_log_lost in kernel/audit.c) and the journal (dev_kmsg_record in
// systemd) about lost lines.
var lostLine = regexp.MustCompile(`audit_lost=[1-9]|Missed [0-9]+ kernel messages`)

// noDenials checks that no access of metalplug was denied so far, and that no line with a possible denial was lost. It only
// prints denials to programs of the distribution.
func noDenials(in *installation, t *testing.T) {
	a := in.audit()
	slices.Sort(a.ours)
	for _, d := range slices.Compact(a.ours) {
		t.Errorf("denied %s", d)
	}
	for _, l := range a.lost {
		t.Errorf("not all that was denied is known: %s", l)
	}
	t.Logf("%d denials of metalplug's domains, %d of others", len(a.ours), len(a.others))
	kinds := make(map[string]int)
	for _, d := range a.others {
		kinds[kind(d)]++
	}
	for k, n := range kinds {
		t.Logf("%d times %s", n, k)
	}
}

// canary checks that the test would notice a denial. It causes a denial, because the shell is not allowed to enter the
// daemon's domain.
func canary(in *installation, t *testing.T) {
	if r := in.m.Try("runcon", "system_u:system_r:metalplugd_t:s0", "/usr/bin/true"); r.Code == 0 {
		t.Error("anybody may run as metalplugd_t")
	}
	in.m.Eventually("a denial", patience, func() bool {
		return len(in.audit().ours) > 0
	})
}

// kind returns a denial without the parts that vary.
func kind(denial string) string {
	permission, _, _ := strings.Cut(denial, " for ")
	var from, to, class string
	for _, field := range strings.Fields(denial) {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "scontext":
			from = value
		case "tcontext":
			to = value
		case "tclass":
			class = value
		}
	}
	return fmt.Sprintf("%s %s %s:%s", permission, from, to, class)
}
