// SPDX-License-Identifier: Apache-2.0

package sysfs_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// The SCSI disk of the tests, with a partition, a generic node and a bsg node.
const (
	scsiDevice = "/sys/devices/pci0000:00/0000:00:1f.0/host2/target2:0:1/2:0:1:3"
	scsiDisk   = scsiDevice + "/block/sdb"
)

func aSCSIDisk() map[string]string {
	return map[string]string{
		"/sys/class/block/": "", "/sys/class/nvme/": "",
		scsiDisk + "/subsystem": "-> ../../../../../../../../../class/block", scsiDisk + "/dev": "8:16\n", scsiDisk + "/holders/": "",
		scsiDisk + "/device": "-> ../..", scsiDisk + "/uevent": "DEVNAME=sdb\n",
		scsiDisk + "/sdb1/subsystem": "-> ../../../../../../../../../../class/block", scsiDisk + "/sdb1/partition": "1\n", scsiDisk + "/sdb1/dev": "8:17\n", scsiDisk + "/sdb1/holders/": "",
		scsiDevice + "/scsi_generic/sg1/subsystem": "-> ../../../../../../../../../class/scsi_generic", scsiDevice + "/scsi_generic/sg1/dev": "21:1\n",
		scsiDevice + "/scsi_generic/sg1/device": "-> ../..",
		scsiDevice + "/bsg/2:0:1:3/subsystem":   "-> ../../../../../../../../../class/bsg", scsiDevice + "/bsg/2:0:1:3/dev": "250:1\n",
		scsiDevice + "/bsg/2:0:1:3/device": "-> ../..",
		scsiDevice + "/subsystem":          "-> ../../../../../../bus/scsi", "/sys/bus/scsi/": "",
		"/sys/class/block/sdb": "-> ../../devices/pci0000:00/0000:00:1f.0/host2/target2:0:1/2:0:1:3/block/sdb",
		"/sys/class/block/sda": "-> ../../devices/sda", "/sys/devices/sda/dev": "8:0\n",
		"/dev/sdb": "", "/dev/sdb1": "", "/dev/sg1": "", "/dev/bsg/2:0:1:3": "", "/dev/sda": "", "/dev/sg0": "",
		"/proc/1/mountinfo": "22 1 8:0 / / rw - ext4 /dev/sda rw\n", "/proc/self/mountinfo": "", "/proc/swaps": "Filename Type\n",
	}
}

// An export of a partition, or of a node for SCSI commands, also exports the disk. An export of the disk also exports
// its partition.
func TestExportedSCSIDisk(t *testing.T) {
	for opened, want := range map[string]string{
		"/dev/sdb": "sdb", "/dev/sdb1": "sdb1", "/dev/sg1": "sg1", "/host/dev/sdb1": "sdb1", "/host/dev/sg1": "sg1",
		"/gone/sdb1": "sdb1", "/gone/sg1": "sg1", "/dev/sda": "", "/dev/sg0": "",
	} {
		for target, files := range exportsOf(opened) {
			h := tree(t, with(aSCSIDisk(), files))
			for _, sysPath := range []string{scsiDisk, scsiDisk + "/sdb1"} {
				var use *sysfs.Use
				err := h.InUse(h.DiskAt(sysPath))
				if want == "" && err == nil || want != "" && errors.As(err, &use) && strings.HasPrefix(err.Error(), want+" is exported by ") {
					continue
				}
				t.Errorf("%s of %s: %s: %v, want %q", target, opened, sysPath, err, want)
			}
		}
	}
}

// pscsi claims the disk in udev_path, but sends its commands to the device at an address.
func TestExportedByItsSCSIAddress(t *testing.T) {
	for _, c := range []struct{ plugin, at, host, want string }{
		{"pscsi_0", "0 Target ID: 1 LUN: 3", "2", "sdb is exported by the SCSI target pscsi_0/d"},
		{"pscsi_2", "0 Target ID: 1 LUN: 3", "PHBA Mode", "sdb is exported by the SCSI target pscsi_2/d"},
		{"pscsi_0", "0 Target ID: 1 LUN: 3", "PHBA Mode", ""},
		{"pscsi_0", "0 Target ID: 1 LUN: 4", "2", ""},
	} {
		place := "/sys/kernel/config/target/core/" + c.plugin + "/d/"
		h := tree(t, with(aSCSIDisk(), map[string]string{
			place + "enable": "1\n", place + "udev_path": "/dev/sda\n",
			place + "info": "Status: ACTIVATED\n        SCSI Device Bus Location: Channel ID: " + c.at + " Host ID: " + c.host + "\n        Vendor: X\n",
		}))
		for _, sysPath := range []string{scsiDisk, scsiDisk + "/sdb1"} {
			if err := h.InUse(h.DiskAt(sysPath)); (err != nil) != (c.want != "") || err != nil && err.Error() != c.want {
				t.Errorf("%s, %s: %s: %v", c.plugin, c.at, sysPath, err)
			}
		}
	}
}
