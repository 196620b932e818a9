//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/integration/vm"
)

// installedConfig is a drop-in for the configuration of the package. It resets each drive before a container starts and
// erases it between two pods. ID_MODEL is only in udevd's database, which metalplug-reset also reads.
const installedConfig = `[[resource]]
name = "metalplug.io/nvme"
class = "nvme"
match = { ID_MODEL = "QEMU*" }
reset = { method = "auto", scrub = %q, when = "both", timeout = "2m" }
`

const dropIn = "/etc/metalplug/conf.d/50-test.toml"

// exposures are the maximum exposures of units in systemd-analyze security.
var exposures = map[string]float64{
	"metalplugd.service": 1.0, "metalplug-reset@1.service": 1.5, "metalplug-holders@1.service": 1.5, "metalplug-unit@1.service": 1.5,
}

// installation is a machine with the unmodified packages and their units.
type installation struct {
	*story
	policy policy
	debs   vm.Debs
	// files are the files of the machine before the installation.
	files []string
}

// step is one part of a story. The story ends after the first failed step.
type step struct {
	name string
	run  func(*installation, *testing.T)
}

func (in *installation) tell(t *testing.T, steps []step) {
	for i, s := range steps {
		if !in.m.Step(t, s.name, func(t *testing.T) { s.run(in, t) }) && i == 0 {
			return
		}
	}
}

// bootInstallable boots a machine that enforces a policy. The packages are not installed yet.
func bootInstallable(t *testing.T, p policy, o vm.Options) *installation {
	in := &installation{policy: p, debs: vm.Packages(t)}
	o.Kernel, o.Packages, o.Unhurried, o.BootTimeout = p.kernel, p.packages, true, 15*time.Minute
	in.story = &story{m: vm.Boot(t, o)}
	// With its usual name, Debian's SELinux policy runs the program in a domain that cannot read the journal.
	in.m.Run("cp", "/usr/bin/journalctl", "/usr/local/bin/journalctl")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("journal:\n%s", in.m.Journal("metalplug*", "300"))
		}
		t.Logf("in an emulated machine:\n%s", in)
	})
	return in
}

// startKubelet starts the simulated kubelet.
func (in *installation) startKubelet() {
	in.kubelet = in.m.StartKubelet()
	in.m.Run("restorecon", "-RF", "/var/lib/kubelet") // a real kubelet labels this directory itself
}

// packages returns the packages that an administrator installs on this machine.
func (in *installation) packages() []string {
	if in.policy.name == selinux.name {
		return []string{in.debs.Metalplug, in.debs.SELinux}
	}
	return []string{in.debs.Metalplug}
}

// TestInstall tests the life of the package on a node, with its units and with SELinux enforcing. [TestKubelet] runs
// without SELinux.
func TestInstall(t *testing.T) {
	in := bootInstallable(t, selinux, vm.Options{Drives: installedDrives()})
	in.files = in.list()
	in.startKubelet()
	in.tell(t, []step{
		{"install", install},
		{"an unlabelled file system on a loop device", createUnlabelled},
		{"labels", testLabels},
		{"without rights", withoutRights},
		{"exposure", exposure},
		{"zero", erasedBy("zero")},
		{"format", erasedBy("format")},
		{"discard", erasedBy("discard")},
		{"contexts", testContexts},
		{"busy", heldByHost},
		{"ask", testCommands},
		{"metrics", testScrape},
		{"at rest", atRestCosts},
		{"hotplug", testHotplug},
		{"bad configuration", badReload},
		{"killed", testKilled},
		{"stopped", testStopped},
		{"events wait", eventsWait},
		{"no start", neverStarts},
		{"state cannot be written", stateReadOnly},
		{"upgrade", testUpgrade},
		{"started by an event", startedByEvent},
		{"denials", noDenials}, // checked before the reboot, which discards the kernel's log
		{"reboot", testReboot},
		{"labels after the reboot", testLabels},
		{"denials after the reboot", noDenials},
		{"a denial is seen", canary},
		{"remove and purge", testPurge},
	})
}

// install runs the commands of an administrator, and checks the result. It installs the policy module after the package,
// like an administrator who enables SELinux later.
func install(in *installation, t *testing.T) {
	if mode := in.m.Run("getenforce"); mode != "Enforcing" {
		t.Fatalf("SELinux is %s", mode)
	}
	in.apt(in.packages()...)
	in.m.Run("udevadm", "settle")
	in.m.Run("udevadm", "verify", "/usr/lib/udev/rules.d/60-metalplug.rules", "/usr/lib/udev/rules.d/70-metalplug.rules")
	in.active(t)
	if in.m.Try("test", "-S", "/run/metalplug/reset.sock").Code != 0 {
		t.Error("no process listens for the reset helper")
	}
	in.configure("zero")
	in.await(t, nvme, int64(len(drives)))
	in.active(t)
}

// apt installs packages without a network.
func (in *installation) apt(files ...string) {
	args := []string{"install", "--no-install-recommends"}
	for i, file := range files {
		to := fmt.Sprintf("/tmp/%d.deb", i)
		in.m.Push(file, to)
		args = append(args, to)
	}
	in.aptGet(args...)
}

// aptGet runs apt-get without questions. In an emulated machine, apt-get may take minutes to rebuild a policy.
func (in *installation) aptGet(args ...string) {
	began := time.Now()
	in.m.RunFor(20*time.Minute, append([]string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y"}, args...)...)
	in.note("apt-get "+args[0], "command to its end", time.Since(began))
}

// configure changes the erase method of a running daemon.
func (in *installation) configure(scrub string) {
	in.m.Run("mkdir", "-p", "/etc/metalplug/conf.d")
	in.m.Write(dropIn, fmt.Sprintf(installedConfig, scrub))
	in.m.Run("systemctl", "reload", "metalplugd")
}

// show returns a property of the service.
func (in *installation) show(property string) string {
	return in.m.Run("systemctl", "show", "--value", "--property", property, "metalplugd")
}

// pid returns the PID of the daemon.
func (in *installation) pid() string { return in.show("MainPID") }

func (in *installation) active(t *testing.T) {
	t.Helper()
	state := in.m.Run("systemctl", "show", "--property", "ActiveState,SubState,Result,NRestarts,StatusText", "metalplugd")
	t.Log(strings.ReplaceAll(state, "\n", "; "))
	for _, want := range []string{"ActiveState=active", "SubState=running", "Result=success"} {
		if !strings.Contains(state, want) {
			t.Errorf("%s is missing in %s", want, state)
		}
	}
	if in.show("StatusText") == "" {
		t.Error("STATUS= is empty")
	}
}

// withoutRights checks the daemon by the files of the kernel. The daemon must have no capability, no network and no device,
// and must not be able to gain privileges.
func withoutRights(in *installation, t *testing.T) {
	status := in.m.Run("cat", "/proc/"+in.pid()+"/status")
	for _, want := range []string{
		"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000",
		"NoNewPrivs:\t1", "Seccomp:\t2",
	} {
		if !strings.Contains(status, want+"\n") {
			t.Errorf("%q is not in /proc/PID/status:\n%s", want, status)
		}
	}
	for _, namespace := range []string{"net", "user", "mnt", "ipc"} {
		own := in.m.Run("readlink", "/proc/"+in.pid()+"/ns/"+namespace)
		if host := in.m.Run("readlink", "/proc/1/ns/"+namespace); own == host {
			t.Errorf("it is in the machine's %s namespace", namespace)
		}
	}
	links := in.m.Sh("sed 1,2d /proc/" + in.pid() + "/net/dev")
	if strings.Count(links, ":") != 1 || !strings.Contains(links, "lo:") {
		t.Errorf("it sees a network: %s", links)
	}
	// systemd opens the kernel log.
	open := in.m.Try("sh", "-c", "readlink /proc/"+in.pid()+"/fd/* | grep '^/dev/' | grep -v '^/dev/null$' | sort -u").Stdout
	if open != "/dev/kmsg\n" {
		t.Errorf("it has devices open: %q", open)
	}
}

// exposure checks systemd's figure for each unit, and its details for the daemon.
func exposure(in *installation, t *testing.T) {
	t.Log(in.m.Try("systemd-analyze", "security", "--no-pager", "metalplugd.service").Stdout)
	for unit, limit := range exposures {
		out := in.m.Try("systemd-analyze", "security", "--no-pager", unit).Stdout
		_, figure, _ := strings.Cut(out, "Overall exposure level for "+unit+": ")
		fields := strings.Fields(figure)
		if len(fields) == 0 {
			t.Errorf("no figure for %s: %s", unit, out)
			continue
		}
		t.Logf("exposure of %s: %s", unit, strings.Join(fields[:min(2, len(fields))], " "))
		if value, err := strconv.ParseFloat(fields[0], 64); err != nil || value > limit {
			t.Errorf("exposure of %s is %s, want at most %v", unit, fields[0], limit)
		}
	}
}

// watchHelpers prints the program, the effective capabilities and the domain of each helper that it sees. A helper runs for
// about 40 ms. Starting a process takes longer, so the script uses only shell builtins. The kernel truncates a name after 15
// characters (TASK_COMM_LEN).
const watchHelpers = `while :; do for p in /proc/[0-9]*; do
name=; read -r name <$p/comm
case $name in metalplug-reset) ;; metalplug-holde) name=metalplug-holders ;; *) continue ;; esac
capabilities=; while read -r key value; do [ "$key" != CapEff: ] || capabilities=$value; done <$p/status
domain=; read -r domain <$p/attr/current
echo $name $capabilities $domain
done; done 2>/dev/null`

// seenHelpers starts a pod, and returns the helpers that watchHelpers has seen.
func (in *installation) seenHelpers(t *testing.T) []string {
	t.Helper()
	watch := in.m.Start("sh", "-c", watchHelpers)
	pod := one("watched")
	in.run(pod)
	watch.Stop() // stop the script now, because it keeps the machine busy
	in.endAndErase(t, pod)
	var seen []string
	for _, l := range watch.Lines(0) {
		seen = append(seen, l.Text)
	}
	slices.Sort(seen)
	return slices.Compact(seen)
}

// testCommands checks the output of the commands that an administrator uses.
func testCommands(in *installation, t *testing.T) {
	list := in.m.Run("metalplugctl", "list")
	t.Logf("metalplugctl list:\n%s", list)
	for _, id := range in.healthy(nvme) {
		if !strings.Contains(list, id) {
			t.Errorf("%s is not in the list", id)
		}
		if why := in.m.Try("metalplugctl", "why", id); why.Code != 0 || !strings.Contains(why.Stdout, nvme) {
			t.Errorf("why %s: exit code %d\n%s%s", id, why.Code, why.Stdout, why.Stderr)
		}
	}
}

// testHotplug checks that udevd's events reach the daemon through systemd's socket.
func testHotplug(in *installation, t *testing.T) {
	before := int64(len(in.healthy(nvme)))
	in.m.Plug(plugged[0])
	in.await(t, nvme, before+1)
	in.m.Unplug(plugged[0])
	in.await(t, nvme, before)
}
