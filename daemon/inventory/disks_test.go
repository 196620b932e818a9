// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/integration/udevtest"
)

// scsiDisk is the recording of a disk with its two nodes.
const scsiDisk = `F: /proc/self/mountinfo=

P: /devices/pci0000:00/0000:00:01.0/ata1/host0/target0:0:0/0:0:0:0
E: SUBSYSTEM=scsi

P: /devices/pci0000:00/0000:00:01.0/ata1/host0/target0:0:0/0:0:0:0/block/sdb
N: sdb
E: SUBSYSTEM=block
E: DEVTYPE=disk
E: DEVNAME=/dev/sdb
E: MAJOR=8
E: MINOR=16
E: ID_SERIAL=X1
E: ID_SERIAL_SHORT=X1
A: size=1024

P: /devices/pci0000:00/0000:00:01.0/ata1/host0/target0:0:0/0:0:0:0/scsi_generic/sg1
N: sg1
E: SUBSYSTEM=scsi_generic
E: DEVNAME=/dev/sg1
E: MAJOR=21
E: MINOR=1
L: device=../../../0:0:0:0

`

// TestDiskInUse checks that a mount, loop device or second path makes a disk Unhealthy, and that the disk's other node is not offered.
func TestDiskInUse(t *testing.T) {
	m := udevtest.New(t, scsiDisk)
	r := start(t, m, "", func(o *inventory.Options) {
		o.Rules = []device.Rule{
			{Resource: "t/sg", Class: &device.Generic, Match: map[string]string{"DEVNAME": "/dev/sg1"}},
			{Resource: "t/sd", Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "block", "DEVNAME": "/dev/sd*"}},
		}
	})
	healthy := func(want bool) func(*inventory.Snapshot) bool {
		return func(s *inventory.Snapshot) bool {
			sg, sd := s.Offer("t/sg").Devices, s.Offer("t/sd").Devices
			return len(sg) == 0 && len(sd) == 1 && sd[0].Healthy == want
		}
	}
	r.waitSnapshot("offered", healthy(true))
	m.Apply(strings.Replace(scsiDisk, "mountinfo=", `mountinfo=36 25 8:16 / /srv rw - xfs /dev/sdb rw\n`, 1))
	r.waitSnapshot("mounted", healthy(false))
	m.Apply(scsiDisk)
	r.waitSnapshot("unmounted", healthy(true))
	other := strings.NewReplacer("sdb", "sda", "host0", "host1", "MINOR=16", "MINOR=0").Replace(strings.Split(scsiDisk, "\n\n")[2])
	m.Plug(other + "\n\n") // another path without a WWID, found after the first
	r.waitSnapshot("a second path", healthy(false))
	m.Unplug("/sys/devices/pci0000:00/0000:00:01.0/ata1/host1/target0:0:0/0:0:0:0/block/sda")
	r.waitSnapshot("one path", healthy(true))
	m.Plug("P: /devices/virtual/block/loop0\nN: loop0\nE: SUBSYSTEM=block\nE: DEVTYPE=disk\nE: DEVNAME=/dev/loop0\nA: loop/backing_file=/dev/sdb\n")
	r.waitSnapshot("the file of a loop device", healthy(false))
}
