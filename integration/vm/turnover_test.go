//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

// turnoverConfig resets each drive before a container starts and writes zeroes
// over it between two pods.
const turnoverConfig = `
[reset]
socket = "direct"

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

// TestTurnover tests the time between two pods, with drives of an emulated machine. The daemon starts the helpers
// itself, as if an administrator had started it manually.
func TestTurnover(t *testing.T) {
	playTurnover(t, []act{
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

// act is a part of a story.
type act struct {
	name string
	run  func(*story, *testing.T)
}

// playTurnover runs acts on a machine with drives and a manually started daemon.
func playTurnover(t *testing.T, acts []act) {
	s := begin(t, turnoverConfig, vm.Options{Drives: drives})
	if !s.m.Step(t, "start", func(t *testing.T) { startTurnover(s, t) }) {
		return
	}
	for _, one := range acts {
		s.m.Step(t, one.name, func(t *testing.T) { one.run(s, t) })
	}
}

func startTurnover(s *story, t *testing.T) {
	s.m.StartDaemon()
	s.await(t, nvme, int64(len(drives)))
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

func resetAtStart(s *story, t *testing.T) {
	_, cursor := s.journal("")
	before := s.countResets()
	pod := one("first")
	began := s.now(t)
	node := s.run(pod)[0]
	s.note("reset before a start", "admit and run a pod", s.now(t).Sub(began))
	log, _ := s.journal(cursor)
	if !strings.Contains(log, "device reset") {
		t.Errorf("the reset of %s is not in the journal:\n%s", node, log)
	}
	if strings.Contains(log, "device erased") {
		t.Errorf("%s was erased, which no pod has had:\n%s", node, log)
	}
	if n := s.countResets() - before; n != 1 {
		t.Errorf("%d controllers came up, not the one", n)
	}
	// The container crashes and starts again. The new container must find the data.
	s.m.Sh("echo precious | dd of=" + node + " bs=4096 conv=sync,fsync status=none")
	if _, _, err := s.kubelet.TryPod(pod); err != nil {
		t.Error(err)
	}
	if got := s.m.Sh("head -c 8 " + node); got != "precious" {
		t.Errorf("after the container was started again its data is %q", got)
	}
	s.m.Run("blkdiscard", "--zeroout", node)
	s.endAndErase(t, pod)
}

func erasedAtRelease(s *story, t *testing.T) {
	pod := one("writes")
	node := s.run(pod)[0]
	// Without a lock, udevd may miss the write.
	s.m.Sh("dd if=/dev/urandom of=" + node + " bs=1M count=60 conv=fsync status=none; mkfs.ext4 -qF " + node)
	_, cursor := s.journal("")
	from, began := s.kubelet.Mark(), s.now(t)
	s.kubelet.RemovePod(pod)
	if _, err := s.kubelet.AwaitAllocatable(from, nvme, int64(len(drives)-1), patience); err != nil {
		t.Errorf("the drive was not withheld: %v", err)
	}
	s.await(t, nvme, int64(len(drives)))
	s.note("erased after a release", "no uevent; pod removed", s.now(t).Sub(began))
	if r := s.m.Try("cmp", "--bytes", "67108864", node, "/dev/zero"); r.Code != 0 {
		t.Errorf("%s is not zero: %s%s", node, r.Stdout, r.Stderr)
	}
	if log, _ := s.journal(cursor); !strings.Contains(log, "device erased") {
		t.Errorf("the journal does not tell:\n%s", log)
	}
}

// releasedBy changes the erase method while the daemon runs, and restores it. text is the expected text in the audit.
func releasedBy(scrub, text string) func(*story, *testing.T) {
	return func(s *story, t *testing.T) {
		s.reload(t, strings.Replace(turnoverConfig, `"zero"`, strconv.Quote(scrub), 1))
		_, cursor := s.journal("")
		erasedAtRelease(s, t)
		if log, _ := s.journal(cursor); !strings.Contains(log, text) {
			t.Errorf("the journal does not say %q:\n%s", text, log)
		}
		s.reload(t, turnoverConfig)
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
func testLingering(s *story, t *testing.T) {
	pod := one("11111111-2222-3333-4444-555555555555")
	node := s.run(pod)[0]
	process := s.inPod(pod, "exec 3<>"+node+"; echo open; exec sleep infinity")
	defer process.Stop()
	if _, err := process.Await(0, patience, func(l vm.Line) bool { return l.Text == "open" }); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.kubelet.TryPod(pod); err != nil {
		t.Errorf("another container of the pod: %v", err)
	}
	from := s.kubelet.Mark()
	s.kubelet.RemovePod(pod)
	if _, err := s.kubelet.AwaitAllocatable(from, nvme, int64(len(drives)-1), patience); err != nil {
		t.Errorf("the drive was not withheld: %v", err)
	}
	s.m.Eventually("a line in the journal about who has it open", patience, func() bool {
		log, _ := s.journal("")
		return strings.Contains(log, "pod "+pod.UID+" has the device open (")
	})
	process.Stop()
	s.await(t, nvme, int64(len(drives)))
	s.removeCgroup(pod)
}

// heldByHost tests a drive that a process on the host has opened without O_EXCL. A container must not get the drive.
func heldByHost(s *story, t *testing.T) {
	pod := one("meets-the-host")
	s.kubelet.AdmitPod(pod)
	var held []*vm.Stream
	for _, d := range drives {
		p := s.m.Start("sh", "-c", "exec 3<"+s.m.Namespaces()[d.Serial]+"; echo open; exec sleep infinity")
		defer p.Stop()
		if _, err := p.Await(0, patience, func(l vm.Line) bool { return l.Text == "open" }); err != nil {
			t.Fatal(err)
		}
		held = append(held, p)
	}
	if _, _, err := s.kubelet.TryPod(pod); err == nil || !strings.Contains(err.Error(), "a process of the host has the device open (\"sleep\", pid ") {
		t.Errorf("start with a drive that the host has open: %v", err)
	}
	for _, p := range held {
		p.Stop()
	}
	if _, _, err := s.kubelet.TryPod(pod); err != nil {
		t.Errorf("after that: %v", err)
	}
	s.endAndErase(t, pod)
}

func mountedBetween(s *story, t *testing.T) {
	pod := one("meets-a-mount")
	s.kubelet.AdmitPod(pod)
	for i, d := range drives {
		node := s.m.Namespaces()[d.Serial]
		s.m.Eventually("a file system on "+d.Serial, patience, func() bool { // metalplug-reset may still read the drive
			return s.m.Try("mkfs.ext4", "-qF", node).Code == 0
		})
		s.m.Sh(fmt.Sprintf("mkdir -p /mnt/%d; mount %s /mnt/%d; echo kept > /mnt/%d/file", i, node, i, i))
	}
	if _, _, err := s.kubelet.StartPod(pod); err == nil {
		t.Error("a container was started with a drive that is mounted")
	}
	for i := range drives {
		if got := s.m.Sh(fmt.Sprintf("cat /mnt/%d/file; umount /mnt/%d", i, i)); got != "kept" {
			t.Errorf("of the file on the mounted drive %q is left", got)
		}
	}
	s.kubelet.RemovePod(pod)
	s.waitForgotten()
	for _, d := range drives {
		node := s.m.Namespaces()[d.Serial]
		s.m.Run("udevadm", "lock", "--device", node, "blkdiscard", "--zeroout", node)
	}
	s.await(t, nvme, int64(len(drives)))
}

// foreignData creates a file system without an event, so udevd does not know it.
func foreignData(s *story, t *testing.T) {
	node := s.m.Namespaces()[drives[0].Serial]
	s.m.StopDaemon()
	s.m.Sh("systemctl stop systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-udevd; mkfs.ext4 -qF " + node +
		"; systemctl start systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-udevd; udevadm settle")
	sum := s.m.Run("sha256sum", node)
	if known := s.m.Try("udevadm", "info", "--query=property", "--property=ID_FS_TYPE", "--value", node).Stdout; strings.TrimSpace(known) != "" {
		t.Logf("udevd knows %q: it looked again", known)
	}
	s.m.StartDaemon()
	s.await(t, nvme, int64(len(drives)-1))
	pod := one("not-that-one")
	if got := s.serialOf(t, s.run(pod)[0]); got != drives[1].Serial {
		t.Errorf("a pod gets %s", got)
	}
	if after := s.m.Run("sha256sum", node); after != sum {
		t.Error("the drive with data was written to")
	}
	s.m.Run("udevadm", "lock", "--device", node, "blkdiscard", "--zeroout", node)
	s.endAndErase(t, pod)
}

// smart changes a drive's health, for which the kernel sends no event. The next inspection notices it.
func smart(s *story, t *testing.T) {
	d := drives[0]
	s.m.Warn(d, 1<<2) // reliability degraded
	from := s.kubelet.Mark()
	s.m.Sh("udevadm trigger --action change /sys/class/block/" + path.Base(s.m.Namespaces()[d.Serial]))
	if _, err := s.kubelet.AwaitAllocatable(from, nvme, int64(len(drives)-1), patience); err != nil {
		t.Error(err)
	}
	if log, _ := s.journal(""); !strings.Contains(log, "SMART: the reliability is degraded") {
		t.Errorf("the journal does not say why:\n%s", log)
	}
	s.m.Warn(d, 0)
	s.m.Sh("udevadm trigger --action change /sys/class/block/" + path.Base(s.m.Namespaces()[d.Serial]))
	s.await(t, nvme, int64(len(drives)))
}
