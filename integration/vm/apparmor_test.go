//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// profiles are the names of the profiles in the package, each in a file with that name.
var profiles = []string{"metalplugd", "metalplug-reset", "metalplug-unit"}

// profilesComplain checks that the package has loaded its profiles in enforce mode, and then puts them in complain mode.
func profilesComplain(in *installation, t *testing.T) {
	in.confinedBy(t, "enforce")
	for _, p := range profiles {
		in.m.Run("apparmor_parser", "--replace", "--Complain", "/etc/apparmor.d/"+p)
	}
	in.m.Run("systemctl", "restart", "metalplugd")
	in.confinedBy(t, "complain")
}

// container is a profile like those that containerd and Docker apply to containers. Only processes with the same profile or
// without a profile may inspect a process with this profile (profile_tracee_perm in security/apparmor/ipc.c).
const container = `abi <abi/3.0>,
include <tunables/global>
profile like-a-container flags=(attach_disconnected) {
  file, network, capability, signal,
  ptrace (trace, tracedby, read, readby) peer=like-a-container,
}
`

// profilesEnforce checks that AppArmor's service has loaded the profiles at boot. Then it starts a process whose profile
// denies other confined programs access to its files. It also creates two loop devices, one of them for a removed file. None
// of this may prevent the offer of a disk or the start of a pod.
func profilesEnforce(in *installation, t *testing.T) {
	in.confinedBy(t, "enforce")
	in.m.Sh(`for f in /var/tmp/loop.img /var/tmp/removed.img; do truncate -s 16M $f; losetup --find $f; done; rm /var/tmp/removed.img`)
	in.m.Write("/tmp/container", container)
	in.m.Run("apparmor_parser", "--replace", "/tmp/container")
	in.m.Run("systemd-run", "--unit", "confined", "aa-exec", "--profile", "like-a-container", "--", "sleep", "infinity")
	in.m.Eventually("the confined process", patience, func() bool {
		pid := in.m.Run("systemctl", "show", "--value", "--property", "MainPID", "confined")
		return strings.HasPrefix(in.m.Try("cat", "/proc/"+pid+"/attr/apparmor/current").Stdout, "like-a-container (enforce)")
	})
}

// confinedBy checks that the kernel has each profile in a mode, and that the daemon runs with its profile.
func (in *installation) confinedBy(t *testing.T, mode string) {
	t.Helper()
	loaded := strings.Split(in.m.Run("cat", "/sys/kernel/security/apparmor/profiles"), "\n")
	for _, p := range profiles {
		if !slices.Contains(loaded, p+" ("+mode+")") {
			t.Errorf("profile %s is not loaded in mode %s", p, mode)
		}
	}
	if got, want := in.context("metalplugd"), "metalplugd ("+mode+")"; got != want {
		t.Errorf("metalplugd runs as %q, want %q", got, want)
	}
}

// probe is the path of an interpreter, in a directory from which every profile may execute programs.
const probe = "/usr/lib/metalplug-probe"

// below runs a script of Perl with a profile, as root with all capabilities and outside the sandbox. It returns the output, and
// whether the script succeeded.
func (in *installation) below(profile, script string) (string, bool) {
	r := in.m.Try("aa-exec", "--profile", profile, "--", probe, "-e", script)
	return strings.TrimSpace(r.Stdout + r.Stderr), r.Code == 0
}

// checkDenied checks that a profile denies the accesses of scripts. Their keys say what they do.
func (in *installation) checkDenied(t *testing.T, profile string, scripts map[string]string) {
	t.Helper()
	for what, script := range scripts {
		if said, done := in.below(profile, script); done {
			t.Errorf("%s may %s", profile, what)
		} else if !strings.Contains(said, "ermission denied") && !strings.Contains(said, "not permitted") {
			t.Errorf("%s: %s fails for another reason: %s", profile, what, said)
		}
	}
}

// takenOver runs programs with the daemon's profile.
func takenOver(in *installation, t *testing.T) {
	in.m.Sh("cp $(readlink -f /usr/bin/perl) " + probe)
	for profile, paths := range map[string][]string{
		"metalplugd":      {"/etc/metalplug/metalplug.toml", "/proc/1/mountinfo"},
		"metalplug-reset": {"/etc/metalplug/metalplug.toml", "/dev/nvme0n1"},
		"metalplug-unit":  {"/etc/metalplug/metalplug.toml"},
	} {
		for _, path := range paths {
			if said, done := in.below(profile, readPath(path)); !done {
				t.Errorf("%s does not read %s: %s", profile, path, said)
			}
		}
		in.checkDenied(t, profile, map[string]string{
			"read passwords":          readPath("/etc/shadow"),
			"read a home":             readPath(in.m.Sh("echo ~root")),
			"read another's memory":   readPath("/proc/1/environ"),
			"write a cron job":        writePath("/etc/cron.d/metalplug"),
			"write a unit":            writePath("/etc/systemd/system/metalplug-probe.service"),
			"write the kubelet's":     writePath("/var/lib/kubelet/kubeadm-flags.env"),
			"call a program":          `exec "/bin/true"; die $!`,
			"open a network socket":   `use Socket; socket(my $s, PF_INET, SOCK_STREAM, 0) or die $!`,
			"open a raw socket":       `use Socket; socket(my $s, 17, SOCK_RAW, 0) or die $!`,
			"change a kernel setting": writePath("/proc/sys/kernel/modprobe"),
			"own a file":              `chown(1, 1, "/run/metalplug") or die $!`,
			"signal another process":  `kill(0, 1) or die $!`,
			"make a device node":      `my $p = "/run/metalplug/node"; syscall(133, $p, 0060600, 0x700) == 0 or die $!`, // mknod(2)
		})
	}
	for _, path := range []string{"/dev/nvme0n1", "/dev/nvme0", "/dev/mem"} {
		if said, done := in.below("metalplugd", readPath(path)); done || !strings.Contains(said, "ermission denied") {
			t.Errorf("metalplugd opens %s: %s", path, said)
		}
	}
	sockets(in, t)
	in.m.Run("rm", probe)
}

// sockets checks that the daemon can connect only to its own sockets, if AppArmor mediates connect(2) on this kernel.
func sockets(in *installation, t *testing.T) {
	const feature = "/sys/kernel/security/apparmor/features/network/af_unix"
	mediated := in.m.Try("test", "-e", feature).Code == 0
	t.Logf("the kernel mediates sockets with a path: %v", mediated)
	for _, path := range []string{"/run/metalplug/control.sock", "/var/lib/kubelet/device-plugins/kubelet.sock"} {
		if said, done := in.below("metalplugd", connectTo(path)); !done {
			t.Errorf("metalplugd does not reach %s: %s", path, said)
		}
	}
	for _, path := range []string{"/run/systemd/private", "/run/dbus/system_bus_socket", "/run/containerd/containerd.sock"} {
		said, done := in.below("metalplugd", connectTo(path))
		if done == mediated {
			t.Errorf("connect to %s: %v %s", path, done, said)
		}
	}
}

func readPath(path string) string {
	return fmt.Sprintf(`if (-d %[1]q) { opendir(my $d, %[1]q) or die $! } else { open(my $f, "<", %[1]q) or die $!; sysread($f, my $b, 1) // die $! }`, path)
}

func writePath(path string) string {
	return fmt.Sprintf(`open(my $f, ">>", %q) or die $!`, path)
}

func connectTo(path string) string {
	return fmt.Sprintf(`use Socket; socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die $!; connect($s, pack_sockaddr_un(%q)) or die $!`, path)
}
