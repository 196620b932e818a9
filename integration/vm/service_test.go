//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/integration/vm"
)

// atRestCosts observes an idle daemon. It must do nothing, and its number of descriptors must not grow. Call it only after
// the work of the previous step has ended.
func atRestCosts(in *installation, t *testing.T) {
	before := in.m.Sh("sleep 60; ls /proc/" + in.pid() + "/fd | wc -l")
	if after := fmt.Sprint(testRest(in.story, t)); after != before {
		t.Errorf("descriptors went from %s to %s", before, after)
	}
}

// badConfig has an error in its second line.
const badConfig = `[[resource]]
name = "nonsense"
class = "nvme"
reset.scrub = "none"
`

// badReload checks that the reload fails, reports the position of the error, and changes nothing.
func badReload(in *installation, t *testing.T) {
	pid, ids := in.pid(), in.healthy(nvme)
	in.m.Write(dropIn, badConfig)
	_, cursor := in.journal("")
	r := in.m.Try("systemctl", "reload", "metalplugd")
	if r.Code == 0 {
		t.Error("systemctl reload says that a bad configuration is good")
	}
	log, _ := in.journal(cursor)
	if !strings.Contains(log, dropIn+":2") {
		t.Errorf("the journal does not name file and line:\n%s", log)
	}
	if status := in.show("StatusText"); !strings.Contains(status, "not reloaded: "+dropIn+":2") {
		t.Errorf("STATUS= is %q", status)
	}
	in.active(t)
	if got := in.pid(); got != pid {
		t.Errorf("process %s became %s", pid, got)
	}
	in.configure("zero")
	if status := in.show("StatusText"); strings.Contains(status, "reloaded") {
		t.Errorf("after a good configuration, STATUS= is %q", status)
	}
	if got := in.healthy(nvme); !slices.Equal(got, ids) {
		t.Errorf("devices were %v and are %v", ids, got)
	}
}

// comeBack ends the daemon while a pod has a drive, and waits until the next daemon has the same state.
func (in *installation) comeBack(t *testing.T, end func(pid string)) {
	t.Helper()
	pod := one("stays")
	node := in.run(pod)[0]
	in.m.Sh("echo precious | dd of=" + node + " bs=4096 conv=sync,fsync status=none")
	pid, ids := in.pid(), in.healthy(nvme)
	from, began := in.kubelet.Mark(), in.now(t)
	end(pid)
	in.m.Eventually("the next metalplugd", 2*patience, func() bool {
		next := in.pid()
		return next != pid && next != "0" && in.show("SubState") == "running"
	})
	if _, err := in.kubelet.AwaitAllocatableSince(began, from, nvme, int64(len(drives)), patience); err != nil {
		t.Error(err)
	}
	in.active(t)
	if got := in.healthy(nvme); !slices.Equal(got, ids) {
		t.Errorf("devices were %v and are %v", ids, got)
	}
	if _, _, err := in.kubelet.TryPod(pod); err != nil {
		t.Errorf("start the container again: %v", err)
	}
	if got := in.m.Sh("head -c 8 " + node); got != "precious" {
		t.Errorf("of the pod's data %q is left", got)
	}
	in.endAndErase(t, pod)
}

func testKilled(in *installation, t *testing.T) {
	in.comeBack(t, func(pid string) { in.m.Run("kill", "-KILL", pid) })
}

// testStopped checks that the watchdog restarts a process that makes no progress.
func testStopped(in *installation, t *testing.T) {
	_, cursor := in.journal("")
	in.comeBack(t, func(pid string) { in.m.Run("kill", "-STOP", pid) })
	if log, _ := in.journal(cursor); !strings.Contains(log, "Watchdog timeout") {
		t.Errorf("it was not the watchdog:\n%s", log)
	}
}

// neverStarts checks that with an invalid configuration the service fails once and prints the position of the error. systemd
// must not restart it, and no event may start it.
func neverStarts(in *installation, t *testing.T) {
	in.m.Run("systemctl", "stop", "metalplugd")
	in.m.Write(dropIn, badConfig)
	if r := in.m.Try("systemctl", "start", "metalplugd"); r.Code == 0 {
		t.Error("it starts with a bad configuration")
	}
	in.m.Eventually("the sockets to go", patience, func() bool {
		return in.m.Try("systemctl", "is-active", "--quiet", "metalplugd-uevent.socket").Code != 0
	})
	in.m.Plug(plugged[0])
	in.m.Eventually("a drive", patience, func() bool { return in.m.Namespaces()[plugged[0].Serial] != "" })
	in.m.Run("udevadm", "settle")
	in.m.Unplug(plugged[0])
	in.m.Run("udevadm", "settle")
	state := in.m.Run("systemctl", "show", "--property", "ActiveState,Result,ExecMainStatus,NRestarts", "metalplugd")
	t.Log(strings.ReplaceAll(state, "\n", "; "))
	for _, want := range []string{"ActiveState=failed", "Result=exit-code", "ExecMainStatus=78", "NRestarts=0"} {
		if !strings.Contains(state, want) {
			t.Errorf("%s is missing in %s", want, state)
		}
	}
	if status := in.m.Try("systemctl", "status", "--no-pager", "metalplugd").Stdout; !strings.Contains(status, dropIn+":2") {
		t.Errorf("systemctl status does not name file and line:\n%s", status)
	}
	in.m.Write(dropIn, fmt.Sprintf(installedConfig, "zero"))
	from := in.kubelet.Mark()
	in.m.Run("systemctl", "start", "metalplugd")
	if _, err := in.kubelet.AwaitAllocatable(from, nvme, int64(len(drives)), patience); err != nil {
		t.Error(err)
	}
	in.active(t)
}

// testUpgrade installs a newer version while a pod has a drive. An administrator has edited the configuration before.
func testUpgrade(in *installation, t *testing.T) {
	const main, mine = "/etc/metalplug/metalplug.toml", "# ours: asked for by the operators"
	in.m.Sh("echo '" + mine + "' >>" + main)
	in.comeBack(t, func(string) { in.apt(in.debs.Newer) })
	if got := in.m.Run("dpkg-query", "-W", "-f", "${Version}", "metalplug"); got != vm.NewerVersion+"-1" {
		t.Errorf("version %s is installed", got)
	}
	if got := in.m.Run("cat", dropIn); got+"\n" != fmt.Sprintf(installedConfig, "zero") {
		t.Errorf("the configuration has become %s", got)
	}
	if got := in.m.Run("tail", "-n", "1", main); got != mine {
		t.Errorf("the edited configuration ends with %q", got)
	}
}

// testPurge removes the policy module before the package. No file may then have an unknown label. Removal keeps files that an
// administrator wrote, and purge restores the original state of the machine.
func testPurge(in *installation, t *testing.T) {
	in.aptGet("purge", "metalplug-selinux")
	if modules := in.m.RunFor(10*time.Minute, "semodule", "-lfull"); strings.Contains(modules, "metalplug") {
		t.Error("the module is left behind")
	}
	if got := in.m.Sh("stat -c %C /usr/sbin/metalplugd"); strings.Contains(got, "metalplug") {
		t.Errorf("/usr/sbin/metalplugd is %s", got)
	}
	in.active(t)
	in.await(t, nvme, int64(len(drives))) // wait until the helpers can answer
	from := in.kubelet.Mark()
	in.aptGet("remove", "metalplug")
	if _, err := in.kubelet.AwaitAllocatable(from, nvme, 0, patience); err != nil {
		t.Error(err)
	}
	if in.m.Try("test", "-e", dropIn).Code != 0 {
		t.Error("removal took the configuration away")
	}
	if units := in.m.Try("systemctl", "list-units", "--no-legend", "--plain", "--state", "active", "metalplug*").Stdout; units != "" {
		t.Errorf("units are active: %s", units)
	}
	in.aptGet("purge", "metalplug")
	after := in.list()
	for _, f := range after {
		if _, found := slices.BinarySearch(in.files, f); !found {
			t.Errorf("%s is left behind", f)
		}
	}
	for _, f := range in.files {
		if _, found := slices.BinarySearch(after, f); !found {
			t.Errorf("%s is gone", f)
		}
	}
	if group := in.m.Try("getent", "group", "metalplug").Stdout; group != "" {
		t.Errorf("the group is left behind: %s", group)
	}
}

// list returns the machine's files, except those of dpkg and apt, logs, and files of the tests and the kubelet.
func (in *installation) list() []string {
	out := in.m.Sh(`find / -xdev \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log -o -path /tmp \
		-o -path /var/tmp -o -path /root -o -path /usr/local -o -path /mnt -o -path /var/lib/kubelet \) -prune -o -print
		find /run /var/lib/kubelet \( -name '*metalplug*' -o -path /run/cdi -o -name 'mp-*' \) 2>/dev/null || true`)
	files := strings.Split(out, "\n")
	slices.Sort(files)
	return files
}
