//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

// mib is a mebibyte in bytes.
const mib = 1 << 20

// TestDisks changes disks from outside the machine. It writes, swaps and compares the images, because the machine's own view
// does not prove the content of a disk.
func TestDisks(t *testing.T) {
	playTurnover(t, []step{
		{"files without labels", createUnlabelled},
		{"one block of data keeps a disk", oneBlock},
		{"an operator adopts a disk", testAdopted},
		{"a disk that was read once is not read again", readOnce},
		{"a pulled disk comes back with other data", otherData},
		{"another disk with the same identity meets a stuck helper", twin},
		{"a drive that keeps what is discarded", keepsDiscarded},
		{"a drive comes back under another number", otherNumber},
		{"an export by any name", exportDisk},
	})
}

// medium is the image of a drive on this host.
type medium struct {
	t    *testing.T
	file string
}

// mediumOf returns the image of a drive. The machine must not write to the drive while the test uses the image.
func (s *story) mediumOf(t *testing.T, d vm.Drive) medium { return medium{t, s.m.Medium(d)} }

// write writes data at an offset of the image.
func (m medium) write(at int64, data []byte) {
	m.t.Helper()
	f, err := os.OpenFile(m.file, os.O_WRONLY, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(data, at); err != nil {
		m.t.Fatal(err)
	}
}

// sum returns a checksum of the whole image.
func (m medium) sum() string {
	m.t.Helper()
	f, err := os.Open(m.file)
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		m.t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// data returns the number of nonzero bytes of the image.
func (m medium) data() (n int) {
	m.t.Helper()
	f, err := os.Open(m.file)
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	for b := make([]byte, mib); ; {
		k, err := f.Read(b)
		n += k - bytes.Count(b[:k], []byte{0})
		switch {
		case err == io.EOF:
			return n
		case err != nil:
			m.t.Fatal(err)
		}
	}
}

// noise returns bytes that never count as blank.
func noise(seed uint64, size int) []byte {
	b := make([]byte, size)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	rand.NewChaCha8(key).Read(b)
	return b
}

// plug inserts a drive and returns the name of its namespace.
func (s *story) plug(t *testing.T, d vm.Drive) string {
	t.Helper()
	s.m.Plug(d)
	var node string
	s.m.Eventually("the drive "+d.Serial, patience, func() bool {
		node = s.m.Namespaces()[d.Serial]
		return node != ""
	})
	return path.Base(node)
}

// oneBlock checks that the first full read finds 4 KiB of data between the samples. The disk must be neither offered nor
// changed.
func oneBlock(in *installation, t *testing.T) {
	const size = 96
	count := in.allocatable(nvme)
	from := in.kubelet.Mark()
	seed := rand.Uint64()
	at := int64(17*mib) + rand.Int64N((size-34)*mib/4096)*4096
	t.Logf("4 KiB at byte %d, seed %d", at, seed)
	for _, c := range []struct {
		serial string
		at     int64
		data   []byte
		says   string
	}{
		{"ONEBLOCK", at, noise(seed, 4096), fmt.Sprintf("unknown data at byte %d", at)},
		{"ONEBYTE", at / 2, []byte{1}, fmt.Sprintf("unknown data at byte %d", at/2/4096*4096)},
		{"PATTERN", 40 * mib, bytes.Repeat([]byte("A"), mib), "unknown data at byte 4"}, // the probe may find any block of the data
	} {
		d := vm.Drive{Serial: c.serial, SizeMiB: size}
		image := in.mediumOf(t, d)
		image.write(c.at, c.data)
		before := image.sum()
		name := in.plug(t, d)
		in.because(t, name, c.says)
		in.onlyAllocatable(t, from, nvme, count)
		if image.sum() != before {
			t.Errorf("%s was written to", c.serial)
		}
		if c.serial != "ONEBLOCK" { // the next step adopts this disk
			in.m.Unplug(d)
		}
	}
}

// testAdopted checks that a disk with data is erased and offered only after the operator's command.
func testAdopted(in *installation, t *testing.T) {
	d := vm.Drive{Serial: "ONEBLOCK"}
	count := in.allocatable(nvme)
	id := in.shown(t, path.Base(in.m.Namespaces()[d.Serial])).ID
	if r := in.m.Try("metalplugctl", "adopt", "nvme-nothing", "--yes"); r.Code == 0 {
		t.Error("a disk that is not there was adopted")
	}
	from := in.kubelet.Mark()
	in.m.Run("metalplugctl", "adopt", id, "--yes")
	if _, err := in.kubelet.AwaitAllocatable(from, nvme, count+1, patience); err != nil {
		t.Fatal(err)
	}
	in.unplugErased(t, d, count)
}

// unplugErased unplugs a drive. It checks that the given number of drives is left, and that the image of the drive has no
// data.
func (s *story) unplugErased(t *testing.T, d vm.Drive, count int64) {
	t.Helper()
	s.m.Unplug(d)
	s.await(t, nvme, count)
	if n := s.mediumOf(t, d).data(); n != 0 {
		t.Errorf("%d bytes of data are left", n)
	}
}

// readOnce checks that the evidence of a disk remains valid in another slot and after a restart. A single byte that another
// host has written must end the evidence.
func readOnce(in *installation, t *testing.T) {
	d := vm.Drive{Serial: "ONEBLOCK"}
	count := in.allocatable(nvme)
	in.m.Run("systemctl", "restart", "metalplugd")
	in.await(t, nvme, count)
	_, cursor := in.journal("")
	began := in.now(t)
	in.plug(t, d)
	in.await(t, nvme, count+1)
	in.note("a disk with evidence", "plug to capacity", in.now(t).Sub(began))
	if log, _ := in.journal(cursor); strings.Contains(log, "device erased") || strings.Contains(log, "disk proven") {
		t.Errorf("the disk was erased or read again:\n%s", log)
	}
	in.m.Unplug(d)
	in.await(t, nvme, count)
	image := in.mediumOf(t, d)
	image.write(20*mib, noise(7, 60*mib))
	before := image.sum()
	from := in.kubelet.Mark()
	in.because(t, in.plug(t, d), "data at byte")
	in.onlyAllocatable(t, from, nvme, count)
	in.m.Unplug(d)
	if image.sum() != before {
		t.Error("the disk was written to")
	}
}

// endsAll removes a pod that has all disks, and returns when they are erased and available again.
func (s *story) endsAll(t *testing.T, pod vm.Pod, count int64) {
	t.Helper()
	from := s.kubelet.Mark()
	s.kubelet.RemovePod(pod)
	if _, err := s.kubelet.AwaitAllocatable(from, nvme, 0, patience); err != nil {
		t.Fatal(err)
	}
	s.await(t, nvme, count)
}

// otherData unplugs a disk with a pod's data before its erasure, and plugs it in with data of another host between all
// samples. This node must not erase it.
func otherData(in *installation, t *testing.T) {
	d := vm.Drive{Serial: "ELSEWHERE", SizeMiB: 96}
	count := in.allocatable(nvme)
	in.plug(t, d)
	in.await(t, nvme, count+1)
	pod := vm.Pod{UID: "loses-its-disk", Limits: map[string]int64{nvme: count + 1}}
	in.run(pod)
	in.m.Unplug(d)
	in.endsAll(t, pod, count)
	image := in.mediumOf(t, d)
	image.write(70*mib+4096, noise(9, 4096))
	before := image.sum()
	from := in.kubelet.Mark()
	in.because(t, in.plug(t, d), "data at byte")
	in.onlyAllocatable(t, from, nvme, count)
	in.m.Unplug(d)
	if image.sum() != before {
		t.Error("the disk was written to")
	}
}

// cordonAll withholds the offered disks, so that a pod gets and the machine erases only the disk that a step plugs in. The
// returned function ends this.
func (s *story) cordonAll(t *testing.T) (end func()) {
	t.Helper()
	ids := s.healthy(nvme)
	s.m.Run(append([]string{"metalplugctl", "cordon"}, ids...)...)
	s.await(t, nvme, 0)
	return func() {
		s.m.Run(append([]string{"metalplugctl", "uncordon"}, ids...)...)
		s.await(t, nvme, int64(len(ids)))
	}
}

// zeroing is a script that succeeds when a helper has been in BLKZEROOUT for longer than a working drive needs.
const zeroing = `for p in $(pgrep -x metalplug-reset); do
	if grep -qs zeroout /proc/$p/task/*/stack && sleep 2 && grep -qs zeroout /proc/$p/task/*/stack; then exit 0; fi
done; exit 1`

// twin replaces a disk with another disk with the same serial number while a helper hangs in an erasure. The other disk must
// keep its file system.
func twin(in *installation, t *testing.T) {
	const serial = "TWIN"
	first, second := vm.Drive{Serial: serial}, vm.Drive{Serial: serial, Medium: "TWIN-OTHER"}
	other := in.mediumOf(t, second)
	if out, err := exec.Command("mke2fs", "-q", "-F", "-t", "ext4", other.file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before := other.sum()

	in.reload(t, strings.Replace(turnoverConfig, `"2m"`, `"1m"`, 1)) // how long the helper waits for the first disk
	defer in.reload(t, turnoverConfig)
	defer in.cordonAll(t)()
	node := "/dev/" + in.plug(t, first)
	in.await(t, nvme, 1)
	pod := one("has-a-twin")
	in.run(pod)
	in.m.Sh("dd if=/dev/urandom of=" + node + " bs=1M count=40 oflag=direct status=none")
	in.m.StallWrites(first, true)
	in.m.Sh("dd if=/dev/urandom of=" + node + " bs=4096 count=1 oflag=direct status=none") // this part of the disk can be written
	in.kubelet.RemovePod(pod)
	in.m.Eventually("a helper that writes", patience, func() bool {
		return in.m.Try("sh", "-c", zeroing).Code == 0
	})
	in.m.Sh("pkill -STOP -x metalplug-reset || true")
	in.m.StallWrites(first, false)
	in.m.Unplug(first)
	name := in.plug(t, second)
	in.m.Sh("pkill -CONT -x metalplug-reset || true")
	in.because(t, name, "ext4")
	in.await(t, nvme, 0)
	in.m.Unplug(second)
	if other.sum() != before {
		t.Error("the other disk was written to")
	}
}

// keepsDiscarded uses a drive that acknowledges Deallocate and keeps the data. metalplug must detect this. The next pod must
// not get the drive until the method zero has erased it.
func keepsDiscarded(in *installation, t *testing.T) {
	in.reload(t, strings.Replace(turnoverConfig, `"zero"`, `"discard"`, 1))
	defer in.cordonAll(t)()
	d := vm.Drive{Serial: "KEEPS", SizeMiB: 96, KeepsDiscarded: true}
	name := in.plug(t, d)
	in.await(t, nvme, 1)
	pod := one("writes-to-a-liar")
	in.run(pod)
	in.m.Sh("dd if=/dev/urandom of=/dev/" + name + " bs=1M seek=64 count=1 oflag=direct status=none")
	in.kubelet.RemovePod(pod)
	found := in.because(t, name, "keeps")
	in.await(t, nvme, 0)
	in.reload(t, turnoverConfig)
	in.m.Run("metalplugctl", "reset", found.ID, "--scrub", "zero", "--yes")
	in.await(t, nvme, 1)
	in.unplugErased(t, d, 0)
}

// otherNumber plugs in a drive again while its old node is open. The kernel then gives different numbers to the disk and the
// generic node. The drive must still work.
func otherNumber(in *installation, t *testing.T) {
	defer in.cordonAll(t)()
	d := vm.Drive{Serial: "NUMBER"}
	old := in.plug(t, d)
	in.await(t, nvme, 1)
	p := in.m.Start("sh", "-c", "exec 3</dev/"+old+"; echo open; exec sleep infinity")
	defer p.Stop()
	if _, err := p.Await(0, patience, func(l vm.Line) bool { return l.Text == "open" }); err != nil {
		t.Fatal(err)
	}
	in.m.Unplug(d)
	in.await(t, nvme, 0)
	name := in.plug(t, d)
	t.Logf("%s is %s now", old, name)
	in.await(t, nvme, 1)
	pod := one("gets-the-number")
	in.run(pod)
	in.endsAll(t, pod, 1)
	p.Stop()
	in.m.Unplug(d)
	in.await(t, nvme, 0)
}

// exportDisk makes a storage target open a disk under different names. metalplug must recognise the disk under each name. If the
// name is a path that the sandbox hides, metalplug must withdraw every disk.
func exportDisk(in *installation, t *testing.T) {
	n := in.m.Namespaces()[drives[0].Serial]
	before := in.allocatable(nvme)
	inspect := func() {
		for _, d := range drives {
			in.trigger(block(in.m.Namespaces()[d.Serial]))
		}
	}
	in.m.Sh(`modprobe nvmet; mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
		mkdir -p /srv /sys/kernel/config/nvmet/subsystems/t1/namespaces/1`)
	const namespace = "/sys/kernel/config/nvmet/subsystems/t1/namespaces/1"
	for _, c := range []struct {
		name, make, export string
		left               int64
	}{
		{"by a link", "ln -sf " + n + " /dev/link0", "/dev/link0", before - 1},
		{"by a node of another name", "cp -a " + n + " /dev/export0", "/dev/export0", before - 1},
		{"by a path with a second slash", "true", "/" + n, before - 1},
		{"by a link that the sandbox hides", "ln -sf " + n + " /srv/disk", "/srv/disk", 0},
	} {
		in.m.Sh(c.make + "; echo " + c.export + " > " + namespace + "/device_path; echo 1 > " + namespace + "/enable")
		inspect()
		in.because(t, path.Base(n), "exported")
		in.await(t, nvme, c.left)
		in.m.Sh("echo 0 > " + namespace + "/enable")
		inspect()
		in.await(t, nvme, before)
	}
	in.m.Sh("echo " + n + " > " + namespace + "/device_path; echo 1 > " + namespace + "/enable; " +
		"for i in $(seq 100); do umount /sys/kernel/config && break; sleep 0.1; done; ! mountpoint -q /sys/kernel/config") // a helper may be reading configfs
	inspect()
	in.because(t, path.Base(n), "configfs")
	in.m.Sh("mount -t configfs configfs /sys/kernel/config; echo 0 > " + namespace + "/enable; rmdir " + namespace +
		" /sys/kernel/config/nvmet/subsystems/t1; modprobe -r nvmet; rm -f /srv/disk /dev/export0 /dev/link0")
	inspect()
	in.await(t, nvme, before)
}
