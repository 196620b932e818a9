// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// This file has the conditions that must be true after each step of a sequence.

// settle waits until the kubelet knows all present devices and their holders.
func (s *sequence) settle() {
	s.t.Helper()
	s.settleOffer()
	if s.up {
		eventually(s.t, "each pod with its own in the kubelet's books", s.books)
	}
}

func (s *sequence) settleOffer() {
	s.t.Helper()
	eventually(s.t, "the hardware in the kubelet's list", s.offer)
}

// offer compares the kubelet's list with the hardware.
func (s *sequence) offer() error {
	s.alive()
	if !s.up {
		return nil
	}
	list := devices(s.t, s.kubelet)
	maps.DeleteFunc(list, func(_ string, d protocol.Device) bool { return d.Resource != widgetResource })
	for _, p := range s.pods {
		for _, id := range p.ids {
			if _, listed := list[id]; !listed && len(list) > 0 {
				s.t.Fatalf("%s, which %s has, has left the list: %v", id, p.uid, list)
			}
		}
	}
	counts, err := s.kubelet.Capacity(within(s.t))
	if err != nil {
		s.t.Fatal(err)
	}
	if !s.serving {
		return errors.Join(allocatableIs(counts, widgetResource, 0), allocatableIs(counts, "example.org/sprocket", 0))
	}
	return errors.Join(s.compare(list), s.compareCounts(counts, len(list)))
}

func allocatableIs(counts map[string]protocol.Counts, resource string, want int) error {
	if got := counts[resource].Allocatable; got != int64(want) {
		return fmt.Errorf("%d of %s are allocatable instead of %d", got, resource, want)
	}
	return nil
}

// compare returns an error for a widget whose state in the daemon is wrong.
func (s *sequence) compare(list map[string]protocol.Device) error {
	known := 0
	for _, p := range s.parts {
		d, listed := list[p.id()]
		if listed {
			known++
		}
		switch {
		case p.plugged() != listed && !(listed && d.Health == "Unhealthy"), p.well() != (d.Health == "Healthy"):
			return fmt.Errorf("W%d is plugged in: %v, and well: %v, but listed: %v, as %q", p.n, p.plugged(), p.well(), listed, d.Health)
		case listed && !slices.Equal(d.NUMA, []int64{int64(p.numa)}):
			return fmt.Errorf("W%d is on NUMA node %d, not %v", p.n, p.numa, d.NUMA)
		}
	}
	if known != len(list) {
		return fmt.Errorf("%d widgets are known, %d are listed: %v", known, len(list), list)
	}
	return nil
}

// compareCounts returns an error if the numbers in the node's status differ from the hardware.
func (s *sequence) compareCounts(counts map[string]protocol.Counts, listed int) error {
	well, sprocket := 0, 0
	for _, p := range s.parts {
		if p.well() {
			well++
		}
	}
	if s.sprockets {
		sprocket = 1
	}
	if got := counts[widgetResource].Capacity; got != int64(listed) {
		return fmt.Errorf("capacity is %d, %d are listed", got, listed)
	}
	return errors.Join(allocatableIs(counts, widgetResource, well), allocatableIs(counts, "example.org/sprocket", sprocket))
}

// alive checks that neither the kubelet nor the daemon has ended.
func (s *sequence) alive() {
	if s.serving {
		select {
		case <-s.daemon.done:
			s.t.Fatalf("metalplugd ended by itself: %v", s.daemon.cmd.ProcessState)
		default:
		}
	}
	if s.up {
		select {
		case <-s.kubelet.life().done:
			s.t.Fatal(s.kubelet.life().died())
		default:
		}
	}
}

// books compares the holders in PodResources with the devices that the pods got.
func (s *sequence) books() error {
	s.alive()
	answer, err := s.kubelet.PodResources(within(s.t))
	if err != nil {
		return err // the kubelet allows a hundred requests a second
	}
	owners, want := map[string]string{}, map[string]string{}
	for _, p := range answer {
		for _, c := range p.GetContainers() {
			for _, d := range c.GetDevices() {
				for _, id := range d.GetDeviceIds() {
					if other := owners[id]; other != "" {
						s.t.Fatalf("%s has %s, and so has %s", p.GetName(), id, other)
					}
					owners[id] = p.GetName()
				}
			}
		}
	}
	for _, p := range s.pods {
		for _, id := range p.ids {
			if p.container == "main" {
				want[id] = p.uid
			}
		}
	}
	if !maps.Equal(owners, want) {
		return fmt.Errorf("%v instead of %v", owners, want)
	}
	return nil
}

// saved is the relevant part of the kubelet's checkpoint.
type saved struct {
	Data struct {
		PodDeviceEntries []struct {
			PodUID    string
			DeviceIDs map[string][]string // keys are NUMA nodes
		}
		RegisteredDevices map[string][]string // keys are resource names
	}
}

// saves reports whether the checkpoint has the resource and the devices of the pods. Without them the next life of the
// kubelet would not know them, and would admit pods without devices. The checkpoint may lack them for a while. The
// kubelet writes it after each list and each Allocate, and the older of two may come last (v1.36
// pkg/kubelet/cm/devicemanager, writeCheckpoint).
func (s *sequence) saves() bool {
	var c saved
	text, err := os.ReadFile(filepath.Join(s.kubelet.DevicePlugins(), "kubelet_internal_checkpoint"))
	if err != nil || json.Unmarshal(text, &c) != nil || c.Data.RegisteredDevices[widgetResource] == nil {
		return false
	}
	there := map[string]string{}
	for _, e := range c.Data.PodDeviceEntries {
		for _, ids := range e.DeviceIDs {
			for _, id := range ids {
				there[id] = e.PodUID
			}
		}
	}
	return !slices.ContainsFunc(s.pods, func(p *tenant) bool {
		return slices.ContainsFunc(p.ids, func(id string) bool { return there[id] != p.uid })
	})
}
