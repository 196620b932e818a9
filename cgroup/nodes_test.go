// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestNodes: a process that has another node of a disk open has the disk, and the kernel's exclusive open does not notice.
func TestNodes(t *testing.T) {
	const (
		pci     = "devices/pci0000:00/0000:00:01.0/"
		virtual = "devices/virtual/nvme-subsystem/"
	)
	sys := tree{t, t.TempDir()}
	for path, node := range map[string]string{
		pci + "nvme/nvme4": "c 241:4", pci + "nvme/nvme5": "c 241:5", pci + "nvme/nvme6": "c 241:6", pci + "nvme/nvme7": "c 241:7",
		// A disk by the number of its subsystem, and its generic node by that of its controller, as after a hotplug.
		pci + "nvme/nvme4/nvme3n2": "b 259:1", pci + "nvme/nvme4/nvme3n2/nvme3n2p1": "b 259:2", pci + "nvme/nvme4/nvme3n2/nvme3n2p10": "b 259:3",
		pci + "nvme/nvme4/ng4n2": "c 242:2",
		// A namespace beside it, which has the controller in common.
		pci + "nvme/nvme4/nvme3n1": "b 259:4", pci + "nvme/nvme4/ng4n1": "c 242:1",
		// A namespace with two paths.
		virtual + "nvme-subsys8/nvme8n1": "b 259:8", virtual + "nvme-subsys8/ng8n1": "c 242:8",
		// A controller without a subsystem, as of an old kernel, and a disk of SCSI.
		pci + "nvme/nvme7/nvme7n1":     "b 259:9",
		pci + "ata1/0:0:0:0/block/sda": "b 8:0", pci + "ata1/0:0:0:0/scsi_generic/sg0": "c 21:0", pci + "ata1/0:0:0:0/bsg/0:0:0:0": "c 249:0",
		"devices/virtual/mem/null": "c 1:3",
	} {
		kind, number, _ := strings.Cut(node, " ")
		sys.write(path+"/dev", number+"\n")
		sys.link("dev/"+map[string]string{"b": "block", "c": "char"}[kind]+"/"+number, filepath.Join(sys.dir, path))
		if strings.HasSuffix(path, "p1") || strings.HasSuffix(path, "p10") {
			sys.write(path+"/partition", "1\n")
		}
	}
	sys.write(pci+"nvme/nvme5/nvme8c5n1/size", "8\n")
	sys.link(pci+"ata1/0:0:0:0/block/sda/device", filepath.Join(sys.dir, pci, "ata1/0:0:0:0"))
	for subsystem, members := range map[string][]string{"nvme-subsys3": {"nvme4"}, "nvme-subsys8": {"nvme5", "nvme6"}} {
		sys.link("class/nvme-subsystem/"+subsystem, filepath.Join(sys.dir, virtual, subsystem))
		for _, member := range members {
			sys.link(virtual+subsystem+"/"+member, filepath.Join(sys.dir, pci, "nvme", member))
		}
	}
	sys.write("dev/block/259:77", "")
	for _, c := range []struct{ of, want string }{
		{"b 259:1", "b 259:1, b 259:2, b 259:3, c 241:4, c 242:2"},
		{"c 242:2", "c 242:2, c 241:4, b 259:1, b 259:2, b 259:3"},
		{"b 259:4", "b 259:4, c 241:4, c 242:1"},
		{"b 259:8", "b 259:8, c 241:5, c 241:6, c 242:8"},
		{"c 242:8", "c 242:8, c 241:5, c 241:6, b 259:8"},
		{"b 259:9", "b 259:9, c 241:7"},
		{"b 259:2", "b 259:2"},
		{"b 8:0", "b 8:0, c 21:0, c 249:0"},
		{"c 1:3", "c 1:3"},
		{"c 1:99", "c 1:99"},
	} {
		var of Number
		if err := of.UnmarshalText([]byte(c.of)); err != nil {
			t.Fatal(err)
		}
		got, err := Nodes(sys.dir, of)
		var texts []string
		for _, n := range got {
			texts = append(texts, n.String())
		}
		slices.Sort(texts[1:])
		want := strings.Split(c.want, ", ")
		slices.Sort(want[1:])
		if err != nil || !slices.Equal(texts, want) {
			t.Errorf("Nodes(%s) = %q, %v\nwant %q", c.of, texts, err, want)
		}
	}
	sys.write(pci+"nvme/nvme4/nvme3n2/nvme3n2p1/dev", "nonsense")
	if got, err := Nodes(sys.dir, Number{Block: true, Major: 259, Minor: 1}); err == nil {
		t.Errorf("Nodes of a disk whose partition cannot be read = %v", got)
	}
}
