// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// Topology is where the devices of a node are on its PCI tree.
type Topology struct {
	Devices []Place `json:"devices"` // by PCI address, then those that are not on PCI
	// Distances has the distance of each GPU and each HCA to each of the others, by their names.
	Distances map[string]map[string]plugin.Distance `json:"distances"`
}

// Place is a device with its place.
type Place struct {
	Name string   `json:"name"` // such as GPU0 or HCA1, one for each PCI function, or empty if no resource takes it or it is not on PCI
	Path []string `json:"path"` // from the PCI host bridge down to the function, or empty if it is not on PCI
	Link string   `json:"link"` // its speed and its width, as far as sysfs has them
	Device
}

// placeNames are how the devices of a class are counted. Those of others are "DEV".
var placeNames = map[string]string{"gpu": "GPU", "infiniband": "HCA", "fpga": "FPGA", "nvme": "DISK"}

// NewTopology returns the topology of a snapshot. It reads the links in sysfs. holders are the pods that hold devices, by ID.
func NewTopology(tree *sysfs.Tree, snapshot *inventory.Snapshot, holders map[string][]kubelet.Pod) Topology {
	t := Topology{Devices: []Place{}, Distances: make(map[string]map[string]plugin.Distance)}
	for d := range snapshot.All() {
		p := Place{Path: []string{}, Device: NewDevice(d, holders)}
		if p.PCI != "" {
			p.Path = plugin.PCIPath(p.SysPath)
			p.Link = link(tree, "/sys/devices/"+strings.Join(p.Path, "/"))
		}
		t.Devices = append(t.Devices, p)
	}
	slices.SortStableFunc(t.Devices, func(a, b Place) int {
		return cmp.Or(cmp.Compare(min(len(b.PCI), 1), min(len(a.PCI), 1)), cmp.Compare(a.PCI, b.PCI), cmp.Compare(a.ID, b.ID))
	})
	count, named := make(map[string]int), make(map[string]string) // by class, and by PCI function
	ends := make(map[string]Place)
	for i := range t.Devices {
		p := &t.Devices[i]
		if p.PCI == "" || cmp.Or(p.Resource, p.Taker) == "" {
			continue
		}
		if class := cmp.Or(placeNames[p.Class], "DEV"); named[p.PCI] == "" {
			named[p.PCI] = fmt.Sprintf("%s%d", class, count[class])
			count[class]++
		}
		if p.Name = named[p.PCI]; p.Class == "gpu" || p.Class == "infiniband" {
			ends[p.Name] = *p
		}
	}
	for from, a := range ends {
		t.Distances[from] = make(map[string]plugin.Distance)
		for to, b := range ends {
			if from != to {
				t.Distances[from][to] = plugin.DistanceOf(a.Path, b.Path, a.NUMANode == b.NUMANode)
			}
		}
	}
	return t
}

// link returns how fast the link of a PCI function is, such as "32.0 GT/s x16", or empty if sysfs does not say
// (current_link_speed_show in drivers/pci/pci-sysfs.c).
func link(tree *sysfs.Tree, function string) string {
	speed, err := tree.Attr(function, "current_link_speed")
	width := tree.Uint(function, "current_link_width")
	if err != nil || width == 0 || strings.HasPrefix(speed, "Unknown") {
		return ""
	}
	return fmt.Sprintf("%s x%d", strings.TrimSuffix(speed, " PCIe"), width)
}
