// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
)

func TestNVMe(t *testing.T) {
	const itself = `nvme-eui.36344830545001230025384300000001 "SAMSUNG MZQL23T8HCLS-00A07, firmware GDC5602Q" numa1` + "\n"
	const node = "  /dev/nvme2n1 = /dev/disk/by-id/nvme-eui.36344830545001230025384300000001"
	const head = `nvme-uuid.01234567-89ab-cdef-0123-456789abcdef "QEMU NVMe Ctrl, firmware 1.0" numa0` + "\n"
	const headNode = "  /dev/nvme3n1 = /dev/disk/by-id/nvme-uuid.01234567-89ab-cdef-0123-456789abcdef"
	testSights(t, []sight{
		{name: "blank", recording: "nvme", want: itself + node},
		{name: "other numbers", recording: "nvme", edits: []string{"nvme2", "nvme0"}, want: itself +
			"  /dev/nvme0n1 = /dev/disk/by-id/nvme-eui.36344830545001230025384300000001"},
		{name: "without a link by wwid", recording: "nvme", edits: []string{"S: disk/by-id/nvme-eui.36344830545001230025384300000001\n", ""}, want: itself +
			"  /dev/nvme2n1 = /dev/disk/by-id/nvme-SAMSUNG_MZQL23T8HCLS-00A07_S64HNE0T500123_2"},
		{name: "without a link but by slot", recording: "nvme", edits: []string{"S: disk/by-id/", "S: other/"}, want: itself + "  /dev/nvme2n1"},
		{name: "without firmware and model", recording: "nvme", edits: []string{"A: firmware_rev", "A: x", "A: model", "A: y"}, want: `
			nvme-eui.36344830545001230025384300000001 numa1
			` + node},
		{name: "resetting", recording: "nvme", edits: []string{"state=live", "state=resetting"}, want: itself +
			"  sick: controller nvme2 is resetting\n" + node},
		{name: "dead", recording: "nvme", edits: []string{"state=live", "state=dead", "size=7501476528", "size=0"}, want: itself +
			"  held back: not complete: the size of the disk is 0\n  sick: controller nvme2 is dead\n" + node},
		{name: "without wwid", recording: "nvme", edits: []string{"wwid=eui.36344830545001230025384300000001\\n", "wwid="}, want: `
			(nvme2n1)
			  held back: not complete: the wwid of the disk is empty`},
		{name: "read-only", recording: "nvme", edits: []string{"ro=0", "ro=1"}, want: itself + "  held back: not for containers: the disk is read-only\n" + node},
		{name: "transport unknown", recording: "nvme", edits: []string{"A: transport=pcie\\n\n", ""}, want: itself +
			"  held back: not complete: the transport of the controller is unknown: read /sys/devices/pci0000:64/0000:64:02.0/0000:65:00.0/nvme/nvme2/transport: gone: no such file or directory\n" + node},

		{name: "multipath", recording: "nvme-multipath", want: head + headNode},
		{name: "multipath, the last path lost", recording: "nvme-multipath", edits: []string{"A: hidden=1\\n\nA: wwid=uuid.0", "A: hidden=1\\n\nA: wwid=uuid.9"}, want: `
			nvme-uuid.01234567-89ab-cdef-0123-456789abcdef
			  sick: no controller reaches the namespace
			` + headNode},
		{name: "multipath, one path dead", recording: "nvme-multipath", edits: []string{"nvme0/nvme3c0n1", "nvme0/nvme3c0n1\nE: SUBSYSTEM=block\nA: hidden=1\nA: wwid=uuid.01234567-89ab-cdef-0123-456789abcdef\n\nP: /devices/pci0000:00/0000:00:06.0/0000:03:00.0/nvme/nvme1/nvme3c1n1"}, want: head + headNode},
		{name: "multipath, all paths dead", recording: "nvme-multipath", edits: []string{"state=live", "state=connecting"}, want: head +
			"  sick: controller nvme0 is connecting\n" + headNode},

		{name: "over fabrics", recording: "nvme-loop", want: `
			nvme-uuid.8a2f1c3e-5b7d-4f60-9182-a3b4c5d6e7f8 "Linux"
			  held back: not for containers: controller nvme1 is connected by loop
			  /dev/nvme1n1 = /dev/disk/by-id/nvme-uuid.8a2f1c3e-5b7d-4f60-9182-a3b4c5d6e7f8`},
		{name: "fallback wwid", recording: "nvme-qemu", want: `
			nvme-1b36-SER0-1 "QEMU NVMe Ctrl, firmware 7.2.22"
			  /dev/nvme0n1 = /dev/disk/by-id/nvme-nvme.1b36-53455230-51454d55204e564d65204374726c-00000001`},
	})
}

func TestNVMeNodes(t *testing.T) {
	nodes := func(nodes string, match map[string]string) []device.Rule {
		return []device.Rule{{Resource: "test/nvme", Class: &device.NVMe, Nodes: nodes, Match: match}}
	}
	first := map[string]string{"DEVNAME": "/dev/nvme4n1"}
	zoned := map[string]string{"ATTR{queue/zoned}": "host-managed"}
	testSights(t, []sight{
		{name: "two namespaces, one with zones", recording: "nvme-zoned", want: `
			nvme-eui.0014ee83000ba210 "WZS4C8T1TDSP303" numa0
			  /dev/nvme4n1 = /dev/disk/by-id/nvme-eui.0014ee83000ba210
			nvme-eui.0014ee83000ba211 "WZS4C8T1TDSP303" numa0
			  held back: not for containers: the disk is zoned: to offer the disk, match ATTR{queue/zoned}
			  /dev/nvme4n2 = /dev/disk/by-id/nvme-eui.0014ee83000ba211`},
		{name: "those with zones", recording: "nvme-zoned", rules: nodes("", zoned), want: `
			nvme-eui.0014ee83000ba210 "WZS4C8T1TDSP303" numa0
			  held back: no resource matches the device: test/nvme: ATTR{queue/zoned} is "none", not "host-managed"
			nvme-eui.0014ee83000ba211 "WZS4C8T1TDSP303" numa0
			  /dev/nvme4n2 = /dev/disk/by-id/nvme-eui.0014ee83000ba211`},
		{name: "zones that need no order", recording: "nvme-zoned", edits: []string{"host-managed", "host-aware"}, want: `
			nvme-eui.0014ee83000ba210 "WZS4C8T1TDSP303" numa0
			  /dev/nvme4n1 = /dev/disk/by-id/nvme-eui.0014ee83000ba210
			nvme-eui.0014ee83000ba211 "WZS4C8T1TDSP303" numa0
			  /dev/nvme4n2 = /dev/disk/by-id/nvme-eui.0014ee83000ba211`},
		{name: "generic", recording: "nvme-zoned", rules: nodes(device.NVMeGeneric, first), want: `
			nvme-eui.0014ee83000ba210 "WZS4C8T1TDSP303" numa0
			  /dev/ng4n1 = /dev/nvme-generic/by-id/nvme-eui.0014ee83000ba210
			nvme-eui.0014ee83000ba211 "WZS4C8T1TDSP303" numa0
			  held back: not for containers: the disk is zoned: to offer the disk, match ATTR{queue/zoned}`},
		{name: "both", recording: "nvme-zoned", rules: nodes(device.NVMeBoth, first), want: `
			nvme-eui.0014ee83000ba210 "WZS4C8T1TDSP303" numa0
			  /dev/nvme4n1 = /dev/disk/by-id/nvme-eui.0014ee83000ba210
			  /dev/ng4n1 = /dev/nvme-generic/by-id/nvme-eui.0014ee83000ba210
			nvme-eui.0014ee83000ba211 "WZS4C8T1TDSP303" numa0
			  held back: not for containers: the disk is zoned: to offer the disk, match ATTR{queue/zoned}`},
		{name: "both, of a drive that was plugged in again", recording: "nvme-zoned", edits: []string{"nvme4/nvme4n", "nvme4/nvme3n", "N: nvme4n", "N: nvme3n"}, rules: nodes(device.NVMeBoth, map[string]string{"DEVNAME": "/dev/nvme3n1"}), want: `
			nvme-eui.0014ee83000ba210 "WZS4C8T1TDSP303" numa0
			  /dev/nvme3n1 = /dev/disk/by-id/nvme-eui.0014ee83000ba210
			  /dev/ng4n1 = /dev/nvme-generic/by-id/nvme-eui.0014ee83000ba210
			nvme-eui.0014ee83000ba211 "WZS4C8T1TDSP303" numa0
			  held back: not for containers: the disk is zoned: to offer the disk, match ATTR{queue/zoned}`},
		{name: "generic, without the link", recording: "nvme-zoned", edits: []string{"S: nvme-generic", "S: other"}, rules: nodes(device.NVMeGeneric, first), want: `
			nvme-eui.0014ee83000ba210 "WZS4C8T1TDSP303" numa0
			  held back: not complete: /dev/ng4n1 has no link /dev/nvme-generic/by-id/nvme-eui.0014ee83000ba210: udev's rule 60-metalplug.rules creates it
			nvme-eui.0014ee83000ba211 "WZS4C8T1TDSP303" numa0
			  held back: not for containers: the disk is zoned: to offer the disk, match ATTR{queue/zoned}`},
		{name: "generic, not there yet", recording: "nvme-zoned", edits: []string{"N: ng4n1\nS: nvme-generic/by-id/nvme-eui.0014ee83000ba210\nE: SUBSYSTEM=nvme-generic", "E: SUBSYSTEM=other"}, rules: nodes(device.NVMeBoth, first), want: `
			nvme-eui.0014ee83000ba210 "WZS4C8T1TDSP303" numa0
			  held back: not complete: the generic node of the disk is missing
			nvme-eui.0014ee83000ba211 "WZS4C8T1TDSP303" numa0
			  held back: not for containers: the disk is zoned: to offer the disk, match ATTR{queue/zoned}`},
	})
}

// The shipped rule creates the link that the code expects.
func TestNVMeGenericLink(t *testing.T) {
	rules, err := os.ReadFile("../../udev/60-metalplug.rules")
	if err != nil {
		t.Fatal(err)
	}
	const link = "/dev/nvme-generic/by-id/nvme-"
	if _, name, _ := strings.Cut(link, "/dev/"); !strings.Contains(string(rules), `SYMLINK+="`+name+`%c"`) {
		t.Errorf("no rule makes %s", link)
	}
}

func TestNVMeInUse(t *testing.T) {
	const itself = `nvme-eui.36344830545001230025384300000001 "SAMSUNG MZQL23T8HCLS-00A07, firmware GDC5602Q" numa1` + "\n"
	const node = "\n  /dev/nvme2n1 = /dev/disk/by-id/nvme-eui.36344830545001230025384300000001"
	const mount = "F: /proc/1/mountinfo="
	const rootDevice = `nvme-eui.01000000010000005cd2e4a1b2c35551 "INTEL SSDPE2KX010T8"` + "\n"
	const rootMount = `22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw\n`
	allowed := []device.Rule{{Resource: "test/nvme", Class: &device.NVMe, AllowInUse: true}}
	testSights(t, []sight{
		{name: "mounted", recording: "nvme", edits: []string{mount, mount + `30 22 259:4 / /data\\040one rw shared:9 - xfs /dev/nvme2n1 rw\n`}, want: itself +
			"  held back: in use: nvme2n1 is mounted on /data one" + node},
		{name: "mounted as btrfs", recording: "nvme", edits: []string{mount, mount + `30 22 0:45 /sub /srv rw - btrfs /dev/disk/by-id/nvme-eui.36344830545001230025384300000001 rw\n`}, want: itself +
			"  held back: in use: nvme2n1 is mounted on /srv" + node},
		{name: "seen in the own namespace only", recording: "nvme", edits: []string{
			mount, "F: /proc/2/mountinfo=", "F: /proc/self/mountinfo=", `F: /proc/self/mountinfo=30 22 259:4 / /data rw - xfs /dev/nvme2n1 rw\n`,
		}, want: itself + "  held back: in use: nvme2n1 is mounted on /data" + node},
		{name: "mounts unknown", recording: "nvme", edits: []string{mount, "F: /proc/2/mountinfo=", "F: /proc/self/mountinfo=", "F: /proc/3/mountinfo="}, want: itself +
			"  held back: in use: cannot determine whether nvme2n1 is mounted: read /proc/self/mountinfo: gone: no such file or directory" + node},
		{name: "swap", recording: "nvme", edits: []string{"/dev/sda3 ", "/dev/nvme2n1 "}, want: itself + "  held back: in use: nvme2n1 is swapped to" + node},
		{name: "swaps unknown", recording: "nvme", edits: []string{"F: /proc/swaps=Filename", "F: /proc/swaps/sub=Filename"}, want: itself +
			"  held back: in use: cannot determine whether nvme2n1 is swapped to: read /proc/swaps: is a directory" + node},
		{name: "holder", recording: "nvme", edits: []string{"A: hidden=0", "A: holders/dm-3/x=\nA: holders/md0/x=\nA: hidden=0"}, want: itself +
			"  held back: in use: nvme2n1 is part of dm-3, md0" + node},
		{name: "partition table", recording: "nvme", edits: []string{"E: ID_NSID=2", "E: ID_PART_TABLE_TYPE=gpt"}, want: itself +
			"  held back: not empty: a partition table (gpt)" + node},
		{name: "file system", recording: "nvme", edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4\nE: ID_FS_USAGE=filesystem"}, want: itself +
			"  held back: not empty: udev found ID_FS_TYPE=ext4" + node},
		{name: "usage without type", recording: "nvme", edits: []string{"E: ID_NSID=2", "E: ID_FS_USAGE=raid"}, want: itself +
			"  held back: not empty: udev found ID_FS_USAGE=raid" + node},
		{name: "loop device", recording: "nvme", edits: []string{"F: /proc/1/", "\nP: /devices/virtual/block/loop0\nE: SUBSYSTEM=block\n" + `A: loop/backing_file=/dev/nvme2n1\n` + "\n\nF: /proc/1/"}, want: itself +
			"  held back: in use: nvme2n1 is the backing file of loop0" + node},
		{name: "in use and read-only", recording: "nvme", edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4", "ro=0", "ro=1"}, want: itself +
			"  held back: not empty: udev found ID_FS_TYPE=ext4; not for containers: the disk is read-only" + node},

		{name: "in use, as the resource allows", recording: "nvme", edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4"}, rules: allowed, want: itself + node[1:]},
		{name: "in use, allowed, but read-only", recording: "nvme", edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4", "ro=0", "ro=1"}, rules: allowed, want: itself +
			"  held back: not empty: udev found ID_FS_TYPE=ext4; not for containers: the disk is read-only" + node},
		{
			name: "over fabrics, named, but in use", recording: "nvme-loop", edits: []string{"E: MINOR=5", "E: MINOR=5\nE: ID_FS_TYPE=ext4"},
			rules: []device.Rule{{Resource: "test/nvme", Class: &device.NVMe, Match: map[string]string{"DEVNAME": "/dev/nvme1n1"}}}, want: `
			nvme-uuid.8a2f1c3e-5b7d-4f60-9182-a3b4c5d6e7f8 "Linux"
			  held back: not empty: udev found ID_FS_TYPE=ext4; not for containers: controller nvme1 is connected by loop
			  /dev/nvme1n1 = /dev/disk/by-id/nvme-uuid.8a2f1c3e-5b7d-4f60-9182-a3b4c5d6e7f8`,
		},

		{name: "the system disk", recording: "nvme-root", want: rootDevice + "  held back: in use: nvme0n1p1 is mounted on /\n  /dev/nvme0n1"},
		{name: "swap partition", recording: "nvme-root", edits: []string{rootMount, "", `Priority\n`, `Priority\n/dev/nvme0n1p2  partition\t8388604\t\t0\t\t-2\n`}, want: rootDevice +
			"  held back: in use: nvme0n1p2 is swapped to\n  /dev/nvme0n1"},
		{name: "partition with a holder", recording: "nvme-root", edits: []string{rootMount, ""}, want: rootDevice +
			"  held back: in use: nvme0n1p2 is part of dm-0\n  /dev/nvme0n1"},
		{name: "partitions of no use", recording: "nvme-root", edits: []string{rootMount, "", "L: holders/dm-0=../../../../../../../../virtual/block/dm-0\n", ""}, want: rootDevice +
			"  held back: not empty: partitions (nvme0n1p1, nvme0n1p2)\n  /dev/nvme0n1"},
	})
}

// For a btrfs on several disks, mountinfo names only one of them.
func TestInUseByBtrfs(t *testing.T) {
	h, devices := loadMachine(t, "nvme")
	member := filepath.Join(h.Sys, "fs/btrfs/6f1c9f2e-0d5a-4a53-8a0e-9d1a9f0f1b2c/devices/nvme2n1")
	if err := os.MkdirAll(member, 0o755); err != nil {
		t.Fatal(err)
	}
	const want = "in use: nvme2n1 is part of the mounted btrfs 6f1c9f2e-0d5a-4a53-8a0e-9d1a9f0f1b2c"
	for _, s := range inspectAll(h, everything, devices) {
		if s.Offer == nil || s.Offer.Error() != want {
			t.Errorf("Offer = %v, want %s", s.Offer, want)
		}
	}
}

// The kernel does not claim a disk that it exports over a network.
func TestInUseByAnExport(t *testing.T) {
	const subsystem, object = "kernel/config/nvmet/subsystems/nqn.1/", "kernel/config/target/core/fileio_0/d/"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"the disk", map[string]string{subsystem + "namespaces/1/enable": "1\n", subsystem + "namespaces/1/device_path": "/dev/nvme2n1\n"}, "in use: nvme2n1 is exported by the NVMe subsystem nqn.1"},
		{"not any more", map[string]string{subsystem + "namespaces/1/enable": "0\n", subsystem + "namespaces/1/device_path": "/dev/nvme2n1\n"}, ""},
		{"another", map[string]string{
			subsystem + "namespaces/1/enable": "1\n", subsystem + "namespaces/1/device_path": "/dev/nvme7n1\n", "class/block/nvme7n1/dev": "259:9\n",
		}, ""},
		{"one that is nowhere", map[string]string{subsystem + "namespaces/1/enable": "1\n", subsystem + "namespaces/1/device_path": "/srv/disk\n"}, "in use: cannot determine whether nvme2n1 is exported: the NVMe subsystem nqn.1 has opened \"/srv/disk\""},
		{"the controller", map[string]string{subsystem + "passthru/enable": "1\n", subsystem + "passthru/device_path": "/dev/nvme2\n"}, "in use: nvme2 is exported by the NVMe subsystem nqn.1"},
		{"as a file", map[string]string{object + "enable": "1\n", object + "info": "File: /dev/nvme2n1  Size: 1\n"}, "in use: nvme2n1 is exported by the SCSI target fileio_0/d"},
		{"unreadable", map[string]string{subsystem + "namespaces/1/enable/x": ""}, "in use: cannot determine whether nvme2n1 is exported: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, devices := loadMachine(t, "nvme")
			for name, text := range c.files {
				name = filepath.Join(h.Sys, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			for _, s := range inspectAll(h, everything, devices) {
				switch {
				case c.want == "":
					if s.Offer != nil {
						t.Errorf("Offer = %v", s.Offer)
					}
				case s.Offer == nil || !strings.HasPrefix(s.Offer.Error(), c.want):
					t.Errorf("Offer = %v, want %s", s.Offer, c.want)
				case s.HostUse(true) == strings.Contains(c.want, "cannot determine"):
					t.Error("it may be the pod's doing")
				}
			}
		})
	}
}
