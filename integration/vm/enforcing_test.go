//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

// testLabels checks that the daemon runs in its domain, and that its files and sockets have its labels.
func testLabels(in *installation, t *testing.T) {
	in.checkContext(t, "metalplugd")
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

// fuse is a program in Perl that serves an empty directory as a FUSE file system (linux/fuse.h).
const fuse = `use Fcntl;
sysopen(my $f, "/dev/fuse", O_RDWR) or die $!;
fcntl($f, F_SETFD, 0) or die $!;
system("mount", "-i", "-t", "fuse", "-o", "fd=" . fileno($f) . ",rootmode=40000,user_id=0,group_id=0", "test", "/mnt/fuse") == 0 or die;
my %answer = (
	3 => pack("Q L2 Q6 L10", 0, 0, 0, 1, (0) x 8, 040755, 2, (0) x 5), # GETATTR
	26 => pack("L4 S2 L2 S2 L8", 7, 31, 0, 0, 0, 0, 4096, (0) x 11), # INIT
	27 => pack("Q L2", 0, 0, 0), # OPENDIR
);
while (sysread($f, my $request, 1 << 17)) {
	my (undef, $operation, $unique) = unpack("L2 Q", $request);
	next if $operation == 2 || $operation == 42; # FORGET and BATCH_FORGET have no answer
	my $body = $answer{$operation} // "";
	syswrite($f, pack("L l Q", 16 + length($body), exists $answer{$operation} ? 0 : -38, $unique) . $body) or die $!; # ENOSYS
}`

// opener is a program in Perl that has directories open. The last one is on an autofs of systemd. The program opens it with
// O_PATH, so that systemd mounts nothing there.
const opener = `use Fcntl;
open(my $a, "<", "/mnt/unlabelled") && open(my $b, "<", "/mnt/overlay") && open(my $c, "<", "/mnt/fuse") or die $!;
sysopen(my $d, "/proc/sys/fs/binfmt_misc", 0x200000) or die $!;
syswrite(STDOUT, "open\n");
sleep`

// createUnlabelled creates files whose type is not in metalplug's SELinux policy. They exist until the reboot. One is the
// file of a loop device, and metalplug-reset checks loop devices before each erasure. The others are directories in an
// unlabelled file system and in file systems that have no labels of their own. A process has these directories open, so
// metalplug-holders inspects them at each start of a container.
func createUnlabelled(in *installation, t *testing.T) {
	in.m.Write("/tmp/fuse", fuse)
	// The policy does not cover the test's own programs.
	in.m.Sh(`[ $(getenforce) = Disabled ] || { trap 'setenforce 1' EXIT; setenforce 0; }
		truncate -s 16M /var/tmp/loop.img
		loop=$(losetup --find --show /var/tmp/loop.img)
		mkfs.ext4 -q $loop
		mkdir -p /mnt/unlabelled /mnt/overlay /mnt/fuse /mnt/lower /mnt/upper /mnt/work
		mount $loop /mnt/unlabelled
		mount -t overlay -o lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/overlay
		systemd-run --quiet perl /tmp/fuse
		until mountpoint -q /mnt/fuse; do sleep 0.2; done`)
	if in.policy.name == selinux.name {
		if mode := in.m.Run("getenforce"); mode != "Enforcing" {
			t.Fatalf("SELinux is %s", mode)
		}
		if label := in.m.Run("stat", "-c", "%C", "/mnt/unlabelled"); !strings.Contains(label, ":unlabeled_t:") {
			t.Errorf("the label of a new file system is %s", label)
		}
	}
	p := in.m.Start("perl", "-e", opener)
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
