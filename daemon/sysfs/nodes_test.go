// SPDX-License-Identifier: Apache-2.0

package sysfs_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// TestNodes checks that all nodes of a disk are found. A process may use a disk through any of them, and opening the disk
// with O_EXCL does not fail then.
func TestNodes(t *testing.T) {
	const (
		pci     = "/sys/devices/pci0000:00/0000:00:01.0/"
		nvme    = pci + "nvme/"
		virtual = "/sys/devices/virtual/nvme-subsystem/"
		scsi    = pci + "ata1/0:0:0:0/"
	)
	root := t.TempDir()
	link := func(name, target string) { put(t, root, name, "-> "+target) }
	write := func(name, text string) { put(t, root, name, text) }
	for path, class := range map[string]string{
		nvme + "nvme4": "nvme", nvme + "nvme5": "nvme", nvme + "nvme6": "nvme", nvme + "nvme7": "nvme", nvme + "nvme9": "nvme",
		virtual + "nvme-subsys3": "nvme-subsystem", virtual + "nvme-subsys8": "nvme-subsystem",
		// A disk with the number of its subsystem, and a generic device with that of its controller, as after a
		// hotplug. The other namespace has the same controller.
		nvme + "nvme4/nvme3n2": "block", nvme + "nvme4/nvme3n2/nvme3n2p1": "block", nvme + "nvme4/ng4n2": "nvme-generic",
		nvme + "nvme4/nvme3n1": "block", nvme + "nvme4/ng4n1": "nvme-generic",
		// A namespace with two paths. A third controller of the subsystem does not reach it.
		virtual + "nvme-subsys8/nvme8n1": "block", virtual + "nvme-subsys8/ng8n1": "nvme-generic",
		nvme + "nvme5/nvme8c5n1": "block", nvme + "nvme6/nvme8c6n1": "block",
		// A controller without a subsystem, as in an old kernel, and a SCSI disk.
		nvme + "nvme7/nvme7n1": "block",
		scsi + "block/sda":     "block", scsi + "block/sda/sda1": "block", scsi + "block/sda/sda2": "block", scsi + "scsi_generic/sg0": "scsi_generic", scsi + "bsg/0:0:0:0": "bsg",
		"/sys/devices/virtual/mem/null": "mem", pci + "ata1/0:0:0:0": "scsi",
	} {
		link(path+"/subsystem", "../class/"+class)
		if strings.Contains(path, "c5n1") || strings.Contains(path, "c6n1") {
			write(path+"/hidden", "1\n")
		}
	}
	link("/sys/block/sda", filepath.Join(root, scsi, "block/sda"))
	write(nvme+"nvme4/nvme3n2/nvme3n2p1/partition", "1\n")
	write(scsi+"block/sda/sda1/partition", "1\n")
	write(scsi+"block/sda/sda2/partition", "2\n")
	for _, name := range []string{"block/sda", "scsi_generic/sg0", "bsg/0:0:0:0"} {
		link(scsi+name+"/device", filepath.Join(root, scsi))
	}
	for subsystem, members := range map[string][]string{"nvme-subsys3": {"nvme4"}, "nvme-subsys8": {"nvme5", "nvme6", "nvme9"}} {
		link("/sys/class/nvme-subsystem/"+subsystem, filepath.Join(root, virtual, subsystem))
		for _, member := range members {
			link(virtual+subsystem+"/"+member, filepath.Join(root, nvme, member))
		}
	}
	tree := sysfs.At(root)
	for _, c := range []struct {
		of   string
		want []string
	}{
		{nvme + "nvme4/nvme3n2", []string{nvme + "nvme4", nvme + "nvme4/ng4n2", nvme + "nvme4/nvme3n2/nvme3n2p1"}},
		{nvme + "nvme4/ng4n2", []string{nvme + "nvme4", nvme + "nvme4/nvme3n2", nvme + "nvme4/nvme3n2/nvme3n2p1"}},
		{nvme + "nvme4/nvme3n1", []string{nvme + "nvme4", nvme + "nvme4/ng4n1"}},
		{virtual + "nvme-subsys8/nvme8n1", []string{nvme + "nvme5", nvme + "nvme6", virtual + "nvme-subsys8/ng8n1"}},
		{virtual + "nvme-subsys8/ng8n1", []string{nvme + "nvme5", nvme + "nvme6", virtual + "nvme-subsys8/nvme8n1"}},
		{nvme + "nvme7/nvme7n1", []string{nvme + "nvme7"}},
		{scsi + "block/sda", []string{scsi + "block/sda/sda1", scsi + "block/sda/sda2", scsi + "bsg/0:0:0:0", scsi + "scsi_generic/sg0"}},
		{scsi + "block/sda/sda2", []string{scsi + "block/sda", scsi + "bsg/0:0:0:0", scsi + "scsi_generic/sg0"}},
		{scsi + "scsi_generic/sg0", []string{scsi + "block/sda", scsi + "block/sda/sda1", scsi + "block/sda/sda2", scsi + "bsg/0:0:0:0"}},
		{nvme + "nvme4", nil},
		{"/sys/devices/virtual/mem/null", nil},
		{"/sys/devices/gone", nil},
	} {
		nodes, err := tree.NodesOf(c.of)
		if err != nil || nodes[0].SysPath != c.of {
			t.Errorf("the nodes of %s begin with %s, %v", c.of, nodes[0].SysPath, err)
		}
		var got []string
		for _, n := range nodes[1:] {
			got = append(got, n.SysPath)
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("the nodes of %s are\n%q\nwant\n%q", c.of, got, c.want)
		}
	}
}
