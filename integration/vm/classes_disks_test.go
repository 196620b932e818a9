//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

// lockDisks returns a shell command that runs with a lock on the disks, so that udevd notices the end of the command. See
// inUse.
func lockDisks(command string, nodes ...string) string {
	return "udevadm lock --device " + strings.Join(nodes, " --device ") + " " + command
}

// useDrives uses drives on the host with a command, and waits until they are no longer offered.
func (s *story) useDrives(t *testing.T, name, command string, nodes ...string) {
	t.Helper()
	s.expect(t, change{
		name: name, act: func() { s.m.Sh(command) }, resource: nvme, by: -int64(len(nodes)),
		action: "change", device: always(path.Base(nodes[len(nodes)-1])),
	})
}

// blank overwrites drives with zeroes, and waits until they are offered again.
func (s *story) blank(t *testing.T, name string, nodes ...string) {
	t.Helper()
	s.expect(t, change{
		name: name + ": blank again", resource: nvme, by: int64(len(nodes)),
		act: func() {
			s.m.Run("udevadm", "settle")
			for _, n := range nodes {
				s.m.Sh(lockDisks("blkdiscard --zeroout "+n, n))
			}
		},
		action: "change", device: always(path.Base(nodes[len(nodes)-1])),
	})
}

func (s *story) members() (nodes []string) {
	all := s.m.Namespaces()
	for _, d := range members {
		nodes = append(nodes, all[d.Serial])
	}
	return nodes
}

// raid checks that a stopped array leaves only its superblocks.
func raid(s *story, t *testing.T) {
	nodes := s.members()
	// Otherwise mdadm's udev rules would assemble the array again as soon as it is stopped.
	s.m.Write("/etc/mdadm/mdadm.conf", "AUTO -all\n")
	create := "mdadm --create /dev/md0 --quiet --run --level=1 --metadata=1.2 --raid-devices=2 " + strings.Join(nodes, " ")
	s.useDrives(t, "md RAID1", lockDisks(create, nodes...), nodes...)
	for _, n := range nodes {
		s.because(t, path.Base(n), path.Base(n)+" is part of md0")
	}
	for _, n := range nodes {
		s.checkStaysInUse(t, n, "[ ! -e /sys/block/md0 ] || mdadm --stop --quiet /dev/md0", "linux_raid_member")
	}
	s.blank(t, "md RAID1", nodes...)
}

// volume checks a volume group without an active volume, so that no device is open.
func volume(s *story, t *testing.T) {
	n := s.members()[0]
	s.useDrives(t, "LVM physical volume", lockDisks("pvcreate --quiet "+n, n), n)
	s.checkStaysInUse(t, n, "vgcreate --quiet vg "+n+"; lvcreate --quiet --setautoactivation n -L 8M -n lv vg", " is part of dm-")
	s.checkStaysInUse(t, n, "vgchange --quiet --activate n vg", "udev found ID_FS_TYPE=LVM2_member")
	s.m.Sh("vgremove --quiet --force vg")
	s.blank(t, "LVM", n)
}

func crypt(s *story, t *testing.T) {
	n := s.members()[0]
	format := "sh -c 'echo secret | cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 " + n + " -'"
	s.useDrives(t, "LUKS, closed", lockDisks(format, n), n)
	s.checkStaysInUse(t, n, "echo secret | cryptsetup open --key-file - "+n+" secret", " is part of dm-")
	s.checkStaysInUse(t, n, "cryptsetup close secret", "ID_FS_TYPE=crypto_LUKS")
	s.blank(t, "LUKS", n)
}

func cache(s *story, t *testing.T) {
	n := s.members()[0]
	s.m.Run("modprobe", "bcache")
	s.useDrives(t, "bcache", lockDisks("make-bcache --bdev "+n, n), n)
	s.because(t, path.Base(n), " is part of bcache0")
	stop := "echo 1 > /sys/block/bcache0/bcache/stop; while [ -e " + block(n) + "/bcache ]; do sleep 0.1; done"
	s.checkStaysInUse(t, n, stop, "ID_FS_TYPE=bcache")
	s.blank(t, "bcache", n)
}

// exclusive makes a process open a drive exclusively. No file in sysfs shows this.
func exclusive(s *story, t *testing.T) {
	n := s.members()[0]
	p := s.m.Start("/run/vm/agent", "hold", n)
	defer p.Stop()
	if _, err := p.Await(0, patience, func(l vm.Line) bool { return l.Text == "open" }); err != nil {
		t.Fatal(err)
	}
	s.expect(t, change{
		name: "opened exclusively", act: func() { s.trigger(block(n)) }, resource: nvme, by: -1,
		action: "change", device: always(path.Base(n)),
	})
	s.because(t, path.Base(n), "cannot be opened exclusively")
	p.Stop()
	s.expect(t, change{
		name: "closed", act: func() { s.trigger(block(n)) }, resource: nvme, by: 1,
		action: "change", device: always(path.Base(n)),
	})
}

// standstill checks that a drive stays in the list although it does not answer for some time. After 30 s, the kernel would
// reset its controller (nvme_core.io_timeout). Other tests cover this.
func standstill(s *story, t *testing.T) {
	d, n := members[1], s.members()[1]
	timeout := block(n) + "/queue/io_timeout" // a timeout in milliseconds
	before := s.m.Run("cat", timeout)
	defer s.m.Sh("echo " + before + " > " + timeout)
	s.m.Sh("echo 180000 > " + timeout)
	from, count := s.kubelet.Mark(), s.allocatable(nvme)
	s.m.Stall(d, true)
	defer s.m.Stall(d, false)
	s.trigger(block(n))
	s.because(t, path.Base(n), "the last known state is assumed: not complete: metalplug cannot prove that the disk is empty: no answer")
	s.m.Stall(d, false)
	s.because(t, path.Base(n), "")
	s.onlyAllocatable(t, from, nvme, count)
}

// fabricUUID is the identity of the target's namespace. It differs from the IDs of QEMU's drives, because the kernel ignores
// their UUIDs.
const fabricUUID = "11111111-2222-3333-4444-555555555555"

const (
	exportNamespace = `set -e
	modprobe -a null_blk nvmet nvme-loop
	mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
	mkdir /sys/kernel/config/nullb/backing; cd /sys/kernel/config/nullb/backing
	echo 64 > size; echo 1 > memory_backed; echo 1 > power
	cd /sys/kernel/config/nvmet
	mkdir subsystems/t1; echo 1 > subsystems/t1/attr_allow_any_host
	mkdir subsystems/t1/namespaces/1; cd subsystems/t1/namespaces/1
	echo /dev/$(ls /sys/class/block | grep '^nullb\|^backing' | tail -n 1) > device_path; echo ` + fabricUUID + ` > device_uuid; echo 1 > enable
	cd /sys/kernel/config/nvmet
	mkdir ports/1; echo loop > ports/1/addr_trtype; ln -s /sys/kernel/config/nvmet/subsystems/t1 ports/1/subsystems/t1
	echo transport=loop,nqn=t1 > /dev/nvme-fabrics`
	withdrawNamespace = `for c in /sys/class/nvme/nvme*; do [ $(cat $c/transport) != loop ] || echo 1 > $c/delete_controller; done
	cd /sys/kernel/config/nvmet
	rm ports/1/subsystems/t1; rmdir ports/1; echo 0 > subsystems/t1/namespaces/1/enable
	rmdir subsystems/t1/namespaces/1 subsystems/t1 /sys/kernel/config/nullb/backing; modprobe -r nvme-loop nvmet null_blk`
)

// loopNamespace checks that a namespace outside PCI Express is listed, but is not offered under any identity.
func loopNamespace(s *story, t *testing.T) {
	from, before := s.kubelet.Mark(), s.allocatable(nvme)
	events := s.udev.Mark()
	s.m.Sh(exportNamespace)
	s.udev.Block(events, "add")
	find := "grep -ls uuid." + fabricUUID + " /sys/class/block/nvme*/wwid | xargs -rn1 dirname | xargs -rn1 basename | grep -v c"
	s.m.Eventually("the namespace", patience, func() bool { return s.m.Try("sh", "-c", find).Code == 0 })
	d := s.because(t, s.m.Sh(find), "is connected by loop")
	if d.ID != "nvme-uuid."+fabricUUID || d.Resource != "" {
		t.Errorf("the namespace is %+v", d)
	}
	s.m.Sh(withdrawNamespace)
	s.m.Run("udevadm", "settle")
	s.onlyAllocatable(t, from, nvme, before)
}

// scsi checks that a disk of class node is erased like a namespace.
func scsi(s *story, t *testing.T) {
	s.expect(t, change{
		name: "a SCSI disk", act: func() { s.m.Run("modprobe", "scsi_debug", "dev_size_mb=16") }, resource: scratch, by: 1,
		action: "add", device: always("sda"),
	})
	pod := vm.Pod{UID: "writes-to-scsi", Limits: map[string]int64{scratch: 1}}
	nodes := s.run(pod)
	if !slices.Equal(nodes, []string{"/dev/sda"}) {
		t.Errorf("a pod gets %v", nodes)
	}
	s.m.Sh("mkfs.ext4 -qF /dev/sda; dd if=/dev/urandom of=/dev/sda bs=1M seek=8 count=1 conv=fsync status=none")
	from := s.kubelet.Mark()
	began := s.now(t)
	s.kubelet.RemovePod(pod)
	if _, err := s.kubelet.AwaitAllocatable(from, scratch, 0, patience); err != nil {
		t.Errorf("the disk was not withheld: %v", err)
	}
	s.await(t, scratch, 1)
	s.note("a SCSI disk is erased", "no uevent; pod removed", s.now(t).Sub(began))
	if r := s.m.Try("cmp", "--bytes", "16777216", "/dev/sda", "/dev/zero"); r.Code != 0 {
		t.Errorf("/dev/sda is not zero: %s%s", r.Stdout, r.Stderr)
	}
	s.expect(t, change{
		name: "the SCSI disk goes", act: func() { s.m.Run("modprobe", "-r", "scsi_debug") }, resource: scratch, by: -1,
		action: "remove", device: always("sda"),
	})
}
