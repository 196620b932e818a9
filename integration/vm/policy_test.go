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

// policy is a security module of Linux that enforces metalplug's policy.
type policy struct {
	name     string
	kernel   string            // parameters that make the kernel use the module
	packages []string          // additional Debian packages of the machine
	contexts map[string]string // context of each program, as in /proc/PID/attr/current
	violate  []string          // command that the policy of metalplugd denies
}

// everyDenial makes the kernel keep all reports of denials. Without auditd, each denial is a line of the kernel log. By
// default, the kernel drops lines after the first ten in 5 s.
const everyDenial = " audit_backlog_limit=8192 sysctl.kernel.printk_ratelimit=0 log_buf_len=4M"

var (
	// selinux enforces the policy from the start of the kernel.
	selinux = policy{
		name: "SELinux", kernel: "selinux=1 security=selinux enforcing=1" + everyDenial,
		contexts: map[string]string{
			"metalplugd":        "system_u:system_r:metalplugd_t:s0",
			"metalplug-reset":   "system_u:system_r:metalplug_reset_t:s0",
			"metalplug-holders": "system_u:system_r:metalplug_holders_t:s0",
			"metalplug-dra":     "system_u:system_r:metalplug_dra_t:s0",
		},
		violate: []string{"runcon", "system_u:system_r:metalplugd_t:s0", "/usr/bin/true"},
	}
	// appArmor is the default of Debian's kernel. metalplug-holders has no profile.
	appArmor = policy{
		name: "AppArmor", kernel: "apparmor=1 security=apparmor" + everyDenial,
		packages: append(slices.Clone(vm.NodePackages), "apparmor"), // all tests with AppArmor share an image
		contexts: map[string]string{
			"metalplugd":        "metalplugd (enforce)",
			"metalplug-reset":   "metalplug-reset (enforce)",
			"metalplug-holders": "unconfined",
			"metalplug-dra":     "metalplug-dra (enforce)",
		},
		violate: []string{"aa-exec", "--profile", "metalplugd", "--", "cat", "/etc/shadow"},
	}
	policies = []policy{selinux, appArmor}
)

// context returns the context of the main process of a service.
func (in *installation) context(service string) string {
	return in.m.Sh("tr -d '\\0\\n' </proc/$(systemctl show --value --property MainPID " + service + ")/attr/current")
}

// checkContext checks that the main process of a service runs in the context that the policy requires.
func (in *installation) checkContext(t *testing.T, service string) {
	t.Helper()
	if got, want := in.context(service), in.policy.contexts[service]; got != want {
		t.Errorf("%s runs as %q, want %q", service, got, want)
	}
}

// testContexts checks that the daemon and the helpers run in the contexts that the policy requires. Each helper is a separate
// process for one request, and must have exactly the capabilities of its unit.
func testContexts(in *installation, t *testing.T) {
	in.checkContext(t, "metalplugd")
	seen := in.seenHelpers(t)
	t.Logf("helpers: %q", seen)
	for name, capabilities := range map[string]string{
		"metalplug-reset":   "0000000000200000", // CAP_SYS_ADMIN
		"metalplug-holders": "0000010000080004", // CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE
	} {
		if want := name + " " + capabilities + " " + in.policy.contexts[name]; !slices.Contains(seen, want) {
			t.Errorf("%q was not seen among %q", want, seen)
		}
	}
}

// audit has the kernel's reports about denied accesses since the boot. ours has denials for metalplug's programs, or for other
// programs on metalplug's objects. others has all other denials. lost has messages about reports that the kernel could not
// record.
type audit struct{ ours, others, lost []string }

// denial matches a log line of SELinux (avc_audit_pre_callback in security/selinux/avc.c) or AppArmor (audit_pre in
// security/apparmor/audit.c). AppArmor reports an access as allowed if a profile in complain mode does not allow it.
var denial = regexp.MustCompile(`(avc:  denied|apparmor="(ALLOWED|DENIED)") .*`)

// process matches the part of a denial that varies with each process.
var process = regexp.MustCompile(` pid=\d+`)

func (in *installation) audit() (a audit) {
	for line := range in.kernelLog() {
		switch found := process.ReplaceAllString(denial.FindString(line), ""); {
		case strings.Contains(found, "metalplug"):
			a.ours = append(a.ours, found)
		case found != "":
			a.others = append(a.others, found)
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

// noDenials checks that no access of metalplug was denied since the boot, and that no line with a possible denial was lost. It
// only prints denials to programs of the distribution.
func noDenials(in *installation, t *testing.T) {
	a := in.audit()
	slices.Sort(a.ours)
	for _, d := range slices.Compact(a.ours) {
		t.Error(d)
	}
	for _, l := range a.lost {
		t.Errorf("not all that was denied is known: %s", l)
	}
	t.Logf("%d denials of metalplug's programs, %d of others", len(a.ours), len(a.others))
	kinds := make(map[string]int)
	for _, d := range a.others {
		kinds[kind(d)]++
	}
	for k, n := range kinds {
		t.Logf("%d times %s", n, k)
	}
}

// canary checks that the test would notice a denial. It causes one.
func canary(in *installation, t *testing.T) {
	before := len(in.audit().ours)
	if r := in.m.Try(in.policy.violate...); r.Code == 0 {
		t.Errorf("%q is allowed", in.policy.violate)
	}
	in.m.Eventually("a denial", patience, func() bool { return len(in.audit().ours) > before })
}

// kind returns a denial of SELinux without the parts that vary, and a denial of AppArmor unchanged.
func kind(denial string) string {
	permission, _, found := strings.Cut(denial, " for ")
	if !found {
		return denial
	}
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
