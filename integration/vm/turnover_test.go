//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

// turnoverConfig resets each drive before a container starts and writes zeroes
// over it between two pods.
const turnoverConfig = `
[[resource]]
name = "metalplug.io/nvme"
class = "nvme"
[resource.reset]
method = "auto"
scrub = "zero"
when = "both"
timeout = "2m"
`

var drives = []vm.Drive{{Serial: "RESET1"}, {Serial: "RESET2"}}

// TestTurnover tests the time between two pods.
func TestTurnover(t *testing.T) {
	playTurnover(t, []step{
		{"a container starts with a drive that was reset", resetAtStart},
		{"what a pod leaves is erased by zero", erasedAtRelease},
		{"what a pod leaves is erased by discard", releasedBy("discard", "discarded 67108864 bytes")},
		{"what a pod leaves is erased by format", releasedBy("format", "formatted namespace 1, SES 1")},
		{"what a pod leaves is erased for the next", erasedAtStart},
		{"the helper is killed while the drive formats", killedInFormat},
		{"a process outlives its pod", testLingering},
		{"this host has the drive open", heldByHost},
		{"the drive is mounted after it was allocated", mountedBetween},
		{"data that no pod has left is never erased", foreignData},
		{"a drive warns of itself", smart},
	})
}

// playTurnover runs steps on machines with drives and the installed package, once with each policy. It then checks that the
// policy confined each program, and has not denied any access.
func playTurnover(t *testing.T, steps []step) {
	t.Parallel() // so that other tests start while this test waits for its machines
	for _, p := range policies {
		t.Run(p.name, func(t *testing.T) {
			in := bootInstallable(t, p, vm.Options{Drives: drives})
			in.startKubelet()
			in.tell(t, slices.Concat([]step{{"start", startTurnover}}, steps, []step{
				{"contexts", testContexts}, {"denials", noDenials}, {"a denial is seen", canary},
			}))
		})
	}
}

// startTurnover installs the package and gives it the configuration.
func startTurnover(in *installation, t *testing.T) {
	in.apt(in.packages()...)
	in.reload(t, turnoverConfig)
	in.await(t, nvme, int64(len(drives)))
}

// one returns a pod with one drive.
func one(uid string) vm.Pod { return vm.Pod{UID: uid, Limits: map[string]int64{nvme: 1}} }

// serialOf returns the serial number of the drive with a node.
func (s *story) serialOf(t *testing.T, node string) string {
	t.Helper()
	for serial, n := range s.m.Namespaces() {
		if n == node {
			return serial
		}
	}
	t.Fatalf("no drive has the node %s", node)
	return ""
}

// journal returns metalplugd's log since a cursor, and the next cursor.
func (s *story) journal(cursor string) (text, next string) {
	args := []string{"journalctl", "--unit", "metalplugd", "--no-pager", "--output", "cat", "--show-cursor"}
	if cursor != "" {
		args = append(args, "--after-cursor", cursor)
	}
	text, next, _ = strings.Cut(s.m.Try(args...).Stdout, "-- cursor: ")
	return text, strings.TrimSpace(next)
}

// countResets returns how often the kernel has initialised controllers.
func (s *story) countResets() int {
	return strings.Count(s.m.Try("dmesg").Stdout, "default/read/poll queues")
}

// waitForgotten waits until metalplugd knows that no pod holds a device. It is for a pod whose container never started, because
// such a pod causes no clean-up.
func (s *story) waitForgotten() {
	s.m.Eventually("no device to be held", 2*patience, func() bool {
		return s.m.Try("grep", "--quiet", `"held":true`, "/var/lib/metalplug/state.json").Code == 1
	})
}

// endAndErase ends a pod and waits until its drive was withheld, erased and offered again.
func (s *story) endAndErase(t *testing.T, pod vm.Pod) {
	t.Helper()
	from := s.kubelet.Mark()
	s.kubelet.RemovePod(pod)
	if _, err := s.kubelet.AwaitAllocatable(from, nvme, int64(len(drives)-1), patience); err != nil {
		t.Errorf("the drive was not withheld: %v", err)
	}
	s.await(t, nvme, int64(len(drives)))
}

func resetAtStart(in *installation, t *testing.T) {
	_, cursor := in.journal("")
	before := in.countResets()
	pod := one("first")
	began := in.now(t)
	node := in.run(pod)[0]
	in.note("reset before a start", "admit and run a pod", in.now(t).Sub(began))
	log, _ := in.journal(cursor)
	if !strings.Contains(log, "device reset") {
		t.Errorf("the reset of %s is not in the journal:\n%s", node, log)
	}
	if strings.Contains(log, "device erased") {
		t.Errorf("%s was erased, which no pod has had:\n%s", node, log)
	}
	if n := in.countResets() - before; n != 1 {
		t.Errorf("%d controllers came up, not the one", n)
	}
	// The container crashes and starts again. The new container must find the data.
	in.m.Sh("echo precious | dd of=" + node + " bs=4096 conv=sync,fsync status=none")
	if _, _, err := in.kubelet.TryPod(pod); err != nil {
		t.Error(err)
	}
	if got := in.m.Sh("head -c 8 " + node); got != "precious" {
		t.Errorf("after the container was started again its data is %q", got)
	}
	in.m.Run("blkdiscard", "--zeroout", node)
	in.endAndErase(t, pod)
}

func erasedAtRelease(in *installation, t *testing.T) {
	pod := one("writes")
	node := in.run(pod)[0]
	// Without a lock, udevd may miss the write.
	in.m.Sh("dd if=/dev/urandom of=" + node + " bs=1M count=60 conv=fsync status=none; mkfs.ext4 -qF " + node)
	_, cursor := in.journal("")
	from, began := in.kubelet.Mark(), in.now(t)
	in.kubelet.RemovePod(pod)
	if _, err := in.kubelet.AwaitAllocatable(from, nvme, int64(len(drives)-1), patience); err != nil {
		t.Errorf("the drive was not withheld: %v", err)
	}
	in.await(t, nvme, int64(len(drives)))
	in.note("erased after a release", "no uevent; pod removed", in.now(t).Sub(began))
	if r := in.m.Try("cmp", "--bytes", "67108864", node, "/dev/zero"); r.Code != 0 {
		t.Errorf("%s is not zero: %s%s", node, r.Stdout, r.Stderr)
	}
	if log, _ := in.journal(cursor); !strings.Contains(log, "device erased") {
		t.Errorf("the journal does not tell:\n%s", log)
	}
}

// releasedBy changes the erase method while the daemon runs, and restores it. text is the expected text in the audit.
func releasedBy(scrub, text string) func(*installation, *testing.T) {
	return func(in *installation, t *testing.T) {
		in.reload(t, strings.Replace(turnoverConfig, `"zero"`, strconv.Quote(scrub), 1))
		_, cursor := in.journal("")
		erasedAtRelease(in, t)
		if log, _ := in.journal(cursor); !strings.Contains(log, text) {
			t.Errorf("the journal does not say %q:\n%s", text, log)
		}
		in.reload(t, turnoverConfig)
	}
}

// reload changes the configuration and returns when it applies.
func (s *story) reload(t *testing.T, config string) {
	t.Helper()
	_, cursor := s.journal("")
	s.m.Write("/etc/metalplug/metalplug.toml", config)
	s.m.Run("systemctl", "reload", "metalplugd")
	var log string
	s.m.Eventually("the configuration to be reloaded, or refused", patience, func() bool {
		log, _ = s.journal(cursor)
		return strings.Contains(log, "configuration reloaded") || strings.Contains(log, "configuration not reloaded")
	})
	if strings.Contains(log, "configuration not reloaded") {
		t.Fatal(log)
	}
}

// inPod starts a script in the cgroup of a pod's container.
func (s *story) inPod(pod vm.Pod, script string) *vm.Stream {
	dir := "/sys/fs/cgroup/kubepods/pod" + pod.UID + "/" + strings.Repeat("c0ffee00", 8)
	return s.m.Start("sh", "-c", fmt.Sprintf("mkdir -p %s; echo $$ > %s/cgroup.procs; %s", dir, dir, script))
}

func (s *story) removeCgroup(pod vm.Pod) {
	s.m.Sh("find /sys/fs/cgroup/kubepods/pod" + pod.UID + " -depth -type d -exec rmdir {} +")
}

// testLingering deletes a pod by force while its container continues to run.
func testLingering(in *installation, t *testing.T) {
	pod := one("11111111-2222-3333-4444-555555555555")
	node := in.run(pod)[0]
	process := in.inPod(pod, "exec 3<>"+node+"; echo open; exec sleep infinity")
	defer process.Stop()
	if _, err := process.Await(0, patience, func(l vm.Line) bool { return l.Text == "open" }); err != nil {
		t.Fatal(err)
	}
	if _, _, err := in.kubelet.TryPod(pod); err != nil {
		t.Errorf("another container of the pod: %v", err)
	}
	from := in.kubelet.Mark()
	in.kubelet.RemovePod(pod)
	if _, err := in.kubelet.AwaitAllocatable(from, nvme, int64(len(drives)-1), patience); err != nil {
		t.Errorf("the drive was not withheld: %v", err)
	}
	in.m.Eventually("a line in the journal about who has it open", patience, func() bool {
		log, _ := in.journal("")
		return strings.Contains(log, "pod "+pod.UID+" has the device open (")
	})
	process.Stop()
	in.await(t, nvme, int64(len(drives)))
	in.removeCgroup(pod)
}

// heldByHost tests a drive that a process on the host has opened without O_EXCL. A container must not get the drive.
func heldByHost(in *installation, t *testing.T) {
	pod := one("meets-the-host")
	in.kubelet.AdmitPod(pod)
	var held []*vm.Stream
	for _, d := range drives {
		p := in.m.Start("sh", "-c", "exec 3<"+in.m.Namespaces()[d.Serial]+"; echo open; exec sleep infinity")
		defer p.Stop()
		if _, err := p.Await(0, patience, func(l vm.Line) bool { return l.Text == "open" }); err != nil {
			t.Fatal(err)
		}
		held = append(held, p)
	}
	if _, _, err := in.kubelet.TryPod(pod); err == nil || !strings.Contains(err.Error(), "a process of the host has the device open (\"sleep\", pid ") {
		t.Errorf("start with a drive that the host has open: %v", err)
	}
	for _, p := range held {
		p.Stop()
	}
	if _, _, err := in.kubelet.TryPod(pod); err != nil {
		t.Errorf("after that: %v", err)
	}
	in.endAndErase(t, pod)
}

func mountedBetween(in *installation, t *testing.T) {
	pod := one("meets-a-mount")
	in.kubelet.AdmitPod(pod)
	for i, d := range drives {
		node := in.m.Namespaces()[d.Serial]
		in.m.Eventually("a file system on "+d.Serial, patience, func() bool { // metalplug-reset may still read the drive
			return in.m.Try("mkfs.ext4", "-qF", node).Code == 0
		})
		in.m.Sh(fmt.Sprintf("mkdir -p /mnt/%d; mount %s /mnt/%d; echo kept > /mnt/%d/file", i, node, i, i))
	}
	if _, _, err := in.kubelet.StartPod(pod); err == nil {
		t.Error("a container was started with a drive that is mounted")
	}
	for i := range drives {
		if got := in.m.Sh(fmt.Sprintf("cat /mnt/%d/file; umount /mnt/%d", i, i)); got != "kept" {
			t.Errorf("of the file on the mounted drive %q is left", got)
		}
	}
	in.kubelet.RemovePod(pod)
	in.waitForgotten()
	for _, d := range drives {
		node := in.m.Namespaces()[d.Serial]
		in.m.Run("udevadm", "lock", "--device", node, "blkdiscard", "--zeroout", node)
	}
	in.await(t, nvme, int64(len(drives)))
}

// foreignData creates a file system without an event, so udevd does not know it.
func foreignData(in *installation, t *testing.T) {
	node := in.m.Namespaces()[drives[0].Serial]
	in.m.StopDaemon()
	in.m.Sh("systemctl stop systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-udevd; mkfs.ext4 -qF " + node +
		"; systemctl start systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-udevd; udevadm settle")
	sum := in.m.Run("sha256sum", node)
	if known := in.m.Try("udevadm", "info", "--query=property", "--property=ID_FS_TYPE", "--value", node).Stdout; strings.TrimSpace(known) != "" {
		t.Logf("udevd knows %q: it looked again", known)
	}
	in.m.StartDaemon()
	in.await(t, nvme, int64(len(drives)-1))
	pod := one("not-that-one")
	if got := in.serialOf(t, in.run(pod)[0]); got != drives[1].Serial {
		t.Errorf("a pod gets %s", got)
	}
	if after := in.m.Run("sha256sum", node); after != sum {
		t.Error("the drive with data was written to")
	}
	in.m.Run("udevadm", "lock", "--device", node, "blkdiscard", "--zeroout", node)
	in.endAndErase(t, pod)
}

// smart changes a drive's health, for which the kernel sends no event. The next inspection notices it.
func smart(in *installation, t *testing.T) {
	d := drives[0]
	in.m.Warn(d, 1<<2) // reliability degraded
	from := in.kubelet.Mark()
	in.m.Sh("udevadm trigger --action change /sys/class/block/" + path.Base(in.m.Namespaces()[d.Serial]))
	if _, err := in.kubelet.AwaitAllocatable(from, nvme, int64(len(drives)-1), patience); err != nil {
		t.Error(err)
	}
	if log, _ := in.journal(""); !strings.Contains(log, "SMART: the reliability is degraded") {
		t.Errorf("the journal does not say why:\n%s", log)
	}
	in.m.Warn(d, 0)
	in.m.Sh("udevadm trigger --action change /sys/class/block/" + path.Base(in.m.Namespaces()[d.Serial]))
	in.await(t, nvme, int64(len(drives)))
}
