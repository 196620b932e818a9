// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/bundle"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// function returns the sysfs path of the PCI function at a place.
func function(p api.Place) string { return "/sys/devices/" + strings.Join(p.Path, "/") }

func placeOf(p api.Place) bundle.Place { return bundle.Place{Path: p.Path, NUMA: p.NUMANode} }

// Links reads the link speeds of PCI functions. The kernel reads them from the hardware (pcie_capability_read_word in
// drivers/pci/access.c), so a read may never return. The zero value is ready to use. The methods of Links are safe for
// concurrent use.
type Links struct {
	mu      sync.Mutex
	reading sync.Map // functions whose link speed is being read
}

// linkTimeout is how long a request waits for the link speeds to be read.
const linkTimeout = time.Second

// speeds returns the link speed of each function, by path. speeds does not read a link speed while an earlier read of the same
// link is in progress.
func (l *Links) speeds(tree *sysfs.Tree, functions []string) map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	type answer struct{ function, link string }
	found, answers, waiting := make(map[string]string), make(chan answer, len(functions)), 0
	for _, f := range functions {
		if _, ok := found[f]; ok {
			continue
		}
		found[f] = "no answer"
		if _, stuck := l.reading.LoadOrStore(f, true); stuck {
			continue
		}
		waiting++
		go func() {
			a := answer{f, link(tree, f)}
			l.reading.Delete(f)
			answers <- a
		}()
	}
	for limit := time.After(linkTimeout); waiting > 0; waiting-- {
		select {
		case a := <-answers:
			found[a.function] = a.link
		case <-limit:
			return found
		}
	}
	return found
}

// placeNames maps classes to their short names in the topology. All other classes are called "DEV".
var placeNames = map[string]string{"gpu": "GPU", "infiniband": "HCA", "fpga": "FPGA", "nvme": "DISK"}

// NewTopology returns a snapshot's topology. The parameter holders maps device IDs to the pods that hold the devices.
func NewTopology(tree *sysfs.Tree, links *Links, snapshot *inventory.Snapshot, holders map[string][]api.Pod) api.Topology {
	t := api.Topology{Devices: []api.Place{}, Distances: make(map[string]map[string]api.Distance)}
	var functions []string
	for d := range snapshot.All() {
		if d.Members != nil { // the tree contains the bundle's members instead
			continue
		}
		p := api.Place{Path: []string{}, Device: NewDevice(d, holders)}
		if p.PCI != "" {
			p.Path = bundle.PlaceOf(d.Device).Path
			functions = append(functions, function(p))
			p.CPUs, _ = tree.Attr(function(p), "local_cpulist")
		}
		t.Devices = append(t.Devices, p)
	}
	speeds := links.speeds(tree, functions)
	for i := range t.Devices {
		t.Devices[i].Link = speeds[function(t.Devices[i])]
	}
	slices.SortStableFunc(t.Devices, func(a, b api.Place) int {
		return cmp.Or(cmp.Compare(min(len(b.PCI), 1), min(len(a.PCI), 1)), cmp.Compare(a.PCI, b.PCI), cmp.Compare(a.ID, b.ID))
	})
	count, named := make(map[string]int), make(map[string]string) // the keys are classes in count, and PCI functions in named
	ends := make(map[string]api.Place)
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
		t.Distances[from] = make(map[string]api.Distance)
		for to, b := range ends {
			if from != to {
				t.Distances[from][to] = placeOf(a).Distance(placeOf(b))
			}
		}
	}
	return t
}

// link returns the link speed of a PCI function, such as "32.0 GT/s x16". link returns "" if sysfs does not report the speed
// (current_link_speed_show in drivers/pci/pci-sysfs.c).
func link(tree *sysfs.Tree, function string) string {
	speed, err := tree.Attr(function, "current_link_speed")
	width := tree.Uint(function, "current_link_width")
	if err != nil || width == 0 || strings.HasPrefix(speed, "Unknown") {
		return ""
	}
	return fmt.Sprintf("%s x%d", strings.TrimSuffix(speed, " PCIe"), width)
}
