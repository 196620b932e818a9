//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

// writer prints its drive and the drive's content, and writes to it.
const writer = `d=$(ls /dev/nvme*n*) || exit 1
echo "has $d, on it [$(dd if=$d bs=512 count=1 2>/dev/null | tr -d '\0')]"
echo precious | dd of=$d bs=4096 conv=sync,fsync 2>/dev/null && echo written
exec sleep 1000000`

// TestKubelet tests a node with the real package, kubelet, containerd and runc. The pod is a static pod, because there is no
// API server. AppArmor confines metalplug. Its profiles are in complain mode until the reboot, and in enforce mode after the
// reboot.
func TestKubelet(t *testing.T) {
	in := bootInstallable(t, appArmor, vm.Options{Drives: drives, MemoryMiB: 2560})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("journal:\n%s", in.m.Try("journalctl", "--no-pager", "--lines", "400", "--unit", "kubelet", "--unit", "containerd").Stdout)
		}
	})
	in.m.InstallNode()
	in.tell(t, []step{
		{"no kubelet yet", noKubeletYet},
		{"the profiles complain", profilesComplain},
		{"its directory is mounted late", mountedLate},
		{"to the pod's output", firstOutput},
		{"the kubelet restarts", kubeletRestarts},
		{"the container crashes", containerCrashes},
		{"nothing beyond the profiles", noDenials}, // a boot discards the kernel's log
		{"the node reboots", nodeReboots},
		{"the profiles enforce", profilesEnforce},
		{"the pod goes", podGoes},
		{"a drive is unplugged under a pod", unpluggedUnderPod},
		{"nothing denied", noDenials},
		{"a denial is seen", canary},
		{"a taken-over daemon", takenOver},
	})
}

// noKubeletYet installs the package before the kubelet, so the daemon waits.
func noKubeletYet(in *installation, t *testing.T) {
	if in.m.Try("test", "-e", "/var/lib/kubelet").Code == 0 {
		t.Fatal("there is a kubelet's directory already")
	}
	in.apt(in.packages()...)
	in.configure("zero")
	in.active(t)
	if status := in.show("StatusText"); !strings.Contains(status, "kubelet connected to 0 of ") {
		t.Errorf("STATUS= is %q", status)
	}
}

// kubeletMount mounts another directory over the kubelet's directory.
const kubeletMount = `[Mount]
What=/srv/kubelet
Where=/var/lib/kubelet
Type=none
Options=bind

[Install]
WantedBy=multi-user.target
`

// mountedLate mounts a file system over the kubelet's directory while the daemon runs. The sandbox keeps the old directory,
// so the daemon ends, and the next daemon has the new directory. At the next boot, the file system is mounted before the
// daemon starts.
func mountedLate(in *installation, t *testing.T) {
	pid := in.pid()
	in.m.Run("mkdir", "-p", "-m", "750", "/srv/kubelet")
	in.m.Write("/etc/systemd/system/var-lib-kubelet.mount", kubeletMount)
	in.m.Run("systemctl", "daemon-reload")
	in.m.Run("systemctl", "enable", "--now", "var-lib-kubelet.mount")
	in.m.Eventually("the next metalplugd", patience, func() bool {
		next := in.pid()
		return next != pid && next != "0" && in.show("SubState") == "running"
	})
	if log, _ := in.journal(""); !strings.Contains(log, "/var/lib/kubelet/device-plugins was replaced") {
		t.Errorf("the journal does not say why it ended:\n%s", log)
	}
	if got := in.m.Run("ls", "/srv/kubelet"); got != "device-plugins\npod-resources" {
		t.Errorf("the file system has %q", got)
	}
}

// firstOutput runs the first commands of an operator on a node.
func firstOutput(in *installation, t *testing.T) {
	began := in.now(t)
	in.m.Run("systemctl", "start", "kubelet")
	in.waitRegistered(1)
	// Wait for the drives, because the kubelet permanently rejects a static pod that comes before its devices. A disk is
	// read in full before it is offered.
	in.m.Eventually("the drives to be offered", patience, func() bool {
		return strings.Count(in.devices(), "Healthy") == len(drives)
	})
	in.m.StaticPod("writer", nvme, 1, writer)
	in.waitPrinted(t, "writer", 0, "[]")
	in.note("systemctl start kubelet", "to the output of a pod", in.now(t).Sub(began))
	if list := in.devices(); strings.Count(list, "default/writer-metalplug") != 1 {
		t.Errorf("nobody can see who has the drive:\n%s", list)
	}
}

// devices returns the operator's view of the devices. It ignores the exit code, which may report an unhealthy device.
func (in *installation) devices() string { return in.m.Try("metalplugctl", "list").Stdout }

// waitRegistered waits until the drives have been registered with the kubelet this number of times.
func (in *installation) waitRegistered(times int) {
	in.m.Eventually("the drives to be registered", patience, func() bool {
		log, _ := in.journal("")
		return strings.Count(log, "endpoint registered resource="+nvme) == times
	})
}

// waitPrinted waits until a pod's container, after the given number of restarts, has printed the content of its drive and
// written to it.
func (in *installation) waitPrinted(t *testing.T, pod string, restarts int, found string) {
	t.Helper()
	var log string
	in.m.Eventually("the pod's output", patience, func() bool {
		log = in.m.PodLog(pod, restarts)
		return strings.HasSuffix(log, "written\n")
	})
	first, _, _ := strings.Cut(log, "\n")
	if !strings.HasPrefix(first, "has /dev/nvme") || !strings.HasSuffix(first, found) || strings.Contains(first, " /dev/nvme0") {
		t.Fatalf("the pod said:\n%s", log)
	}
}

// process returns the PID of the container.
func (in *installation) process() string {
	return in.m.Run("pgrep", "--full", "--exact", "sleep 1000000")
}

// kubeletRestarts checks that the pod does not notice a restart of the kubelet, and that everything is registered again.
func kubeletRestarts(in *installation, t *testing.T) {
	before := in.process()
	in.m.Run("systemctl", "restart", "kubelet")
	in.waitRegistered(2)
	in.m.Eventually("the pod to have its drive", patience, func() bool {
		return strings.Contains(in.devices(), "default/writer-metalplug")
	})
	if after := in.process(); after != before {
		t.Errorf("the container's process was %s and is %s", before, after)
	}
}

// containerCrashes checks that the next container of the pod has the same drive with its data.
func containerCrashes(in *installation, t *testing.T) {
	in.m.Run("kill", "-KILL", in.process())
	in.waitPrinted(t, "writer", 1, "[precious]")
}

// heldDrive returns the drive that a pod has. It waits until the daemon has queried the kubelet and knows this.
func (in *installation) heldDrive(pod string) (held vm.Drive) {
	in.m.Eventually("the pod to have a drive", patience, func() bool {
		for line := range strings.Lines(in.devices()) {
			for _, d := range drives {
				if strings.Contains(line, d.Serial) && strings.Contains(line, "default/"+pod+"-metalplug") {
					held = d
					return true
				}
			}
		}
		return false
	})
	return held
}

// nodeReboots checks that everything starts again, and that the pod has its drive.
func nodeReboots(in *installation, t *testing.T) {
	d := in.heldDrive("writer")
	in.m.Reboot()
	in.waitPrinted(t, "writer", 2, "[precious]")
	if after := in.heldDrive("writer"); after != d {
		t.Errorf("the pod had %s and has %s", d.Serial, after.Serial)
	}
}

// podGoes checks that the pod's drive is erased.
func podGoes(in *installation, t *testing.T) {
	d := in.heldDrive("writer")
	_, cursor := in.journal("")
	in.m.RemoveStaticPod("writer")
	in.m.Eventually("the drive to be erased", patience, func() bool {
		log, _ := in.journal(cursor)
		return strings.Contains(log, "device erased device=nvme-1b36-"+d.Serial)
	})
	if r := in.m.Try("cmp", "--bytes", "67108864", in.m.Namespaces()[d.Serial], "/dev/zero"); r.Code != 0 {
		t.Errorf("%s is not zero: %s%s", d.Serial, r.Stdout, r.Stderr)
	}
	if list := in.devices(); strings.Contains(list, "writer") {
		t.Errorf("the pod is still listed:\n%s", list)
	}
}

// unpluggedUnderPod checks that the pod continues to run, and that its drive is Unhealthy until it is back. The pod's next
// container must find its data. After the pod has ended, the data must stay and no other pod may get the drive, because
// another node may have used the drive.
func unpluggedUnderPod(in *installation, t *testing.T) {
	in.m.StaticPod("second", nvme, 1, writer)
	in.waitPrinted(t, "second", 0, "[]")
	before, d := in.process(), in.heldDrive("second")
	in.m.Unplug(d)
	in.m.Eventually("the drive to be unhealthy", patience, func() bool {
		return strings.Contains(in.devices(), "Unhealthy")
	})
	in.m.Plug(d)
	in.m.Eventually("the drive to be healthy", patience, func() bool {
		return !strings.Contains(in.devices(), "Unhealthy")
	})
	if after := in.process(); after != before {
		t.Errorf("the container's process was %s and is %s", before, after)
	}
	in.m.Run("kill", "-KILL", in.process())
	in.waitPrinted(t, "second", 1, "[precious]")
	in.m.RemoveStaticPod("second")
	in.m.Eventually("the drive to be kept", patience, func() bool {
		return strings.Contains(in.devices(), "unproven: ")
	})
	if got := in.m.Sh("head -c 8 " + in.m.Namespaces()[d.Serial]); got != "precious" {
		t.Errorf("%q is left on it", got)
	}
}
