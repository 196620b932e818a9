// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"log/slog"
	"testing"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
)

func TestListTellsNUMANodesForAllOrNone(t *testing.T) {
	tests := []struct {
		name string
		numa []int
		want bool
	}{
		{"all have one", []int{0, 1}, true},
		{"one has none", []int{0, -1}, false},
		{"none has one", []int{-1, -1}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for i, d := range (&Resource{}).list(offerOf(test.numa, "x/a", "x/b")) {
				if got := d.GetTopology() != nil; got != test.want {
					t.Fatalf("%s: topology %v, want %v", d.GetID(), got, test.want)
				}
				if test.want && d.GetTopology().GetNodes()[0].GetID() != int64(test.numa[i]) {
					t.Errorf("%s: node %v, want %d", d.GetID(), d.GetTopology(), test.numa[i])
				}
			}
		})
	}
}

func TestListIsNeverLongerThanTheKubeletReceives(t *testing.T) {
	offer := &inventory.Offer{}
	for i := range 40_000 {
		offer.Devices = append(offer.Devices, &inventory.Status{
			Device: device.Device{ID: fmt.Sprintf("node-a-rather-long-serial-number-%06d", i), NUMANode: 1}, Healthy: true,
		})
	}
	var l lister
	log := slog.New(slog.DiscardHandler)
	first := l.response(&Resource{Shares: 1}, offer, log)
	if len(first.Devices) != len(offer.Devices) {
		t.Fatalf("%d of %d devices, though they fit", len(first.Devices), len(offer.Devices))
	}
	// Twice as many do not fit. Those that were sent before stay.
	for i := range 50_000 {
		offer.Devices = append(offer.Devices, &inventory.Status{
			Device: device.Device{ID: fmt.Sprintf("node-00-another-long-serial-number-%06d", i), NUMANode: 1}, Healthy: true,
		})
	}
	second := l.response(&Resource{Shares: 1}, offer, log)
	if n := proto.Size(second); n > 4<<20 {
		t.Errorf("the list has %d bytes", n)
	}
	kept := make(map[string]bool)
	for _, d := range second.Devices {
		kept[d.GetID()] = true
	}
	for _, d := range first.Devices {
		if !kept[d.GetID()] {
			t.Fatalf("%s was sent before and is dropped", d.GetID())
		}
	}
}

// A kubelet that has restarted has a new stream, to which nothing was sent.
func TestListThatIsCutKeepsWhatIsHeld(t *testing.T) {
	offer := &inventory.Offer{}
	for i := range 100 {
		offer.Devices = append(offer.Devices, &inventory.Status{
			Device: device.Device{ID: fmt.Sprintf("gpu-%036d", i)}, Healthy: true, Held: i == 99,
		})
	}
	r := &Resource{Shares: 1000}
	list := new(lister).response(r, offer, slog.New(slog.DiscardHandler))
	if len(list.Devices) >= 100*1000 {
		t.Fatal("the list is not cut")
	}
	held := 0
	for _, d := range list.Devices {
		if parent(d.GetID()) == offer.Devices[99].Device.ID {
			held++
		}
	}
	if held != 1000 {
		t.Errorf("%d of 1000 shares of the device that a pod holds", held)
	}
}

func TestWireSize(t *testing.T) {
	d := &pluginapi.Device{
		ID: "some-device", Health: pluginapi.Healthy,
		Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 1}}},
	}
	for n := range 3 {
		list := &pluginapi.ListAndWatchResponse{}
		for range n {
			list.Devices = append(list.Devices, d)
		}
		if got, want := n*wireSize(d), proto.Size(list); got != want {
			t.Errorf("%d devices: %d bytes, want %d", n, got, want)
		}
	}
}

func TestShareIDs(t *testing.T) {
	r := Resource{Shares: 3}
	for _, test := range []struct {
		share, device string
		ok            bool
	}{
		{"node-a::0", "node-a", true},
		{"node-a::2", "node-a", true},
		{"0000:3b:00.0::1", "0000:3b:00.0", true},
		{"node-a::3", "node-a", false},
		{"node-a::-1", "node-a", false},
		{"node-a::x", "node-a", false},
		{"node-a", "node-a", false},
		{"", "", false},
	} {
		if device, ok := r.deviceID(test.share); device != test.device || ok != test.ok {
			t.Errorf("deviceID(%q) = %q, %v, want %q, %v", test.share, device, ok, test.device, test.ok)
		}
	}
}
