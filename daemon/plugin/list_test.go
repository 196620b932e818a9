// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/metalplug/metalplug/daemon/checkpoint"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/verdict"
)

func TestListIsNeverLongerThanTheKubeletReceives(t *testing.T) {
	offer := &inventory.Offer{}
	for i := range 40_000 {
		offer.Devices = append(offer.Devices, &inventory.Status{
			Device: &device.Device{ID: fmt.Sprintf("node-a-rather-long-serial-number-%06d", i), NUMANode: 1}, Verdict: verdict.Verdict{Healthy: true},
		})
	}
	if list, left := (&Resource{Shares: 1}).response(offer); len(list.Devices) != len(offer.Devices) || left > 0 {
		t.Fatalf("%d of %d devices, though they fit", len(list.Devices), len(offer.Devices))
	}
	// A list with twice as many devices is too large.
	for i := range 50_000 {
		offer.Devices = append(offer.Devices, &inventory.Status{
			Device: &device.Device{ID: fmt.Sprintf("node-b-another-long-serial-number-%06d", i), NUMANode: 1}, Verdict: verdict.Verdict{Healthy: true},
		})
	}
	list, left := (&Resource{Shares: 1}).response(offer)
	if n := proto.Size(list); n > 4<<20 || left == 0 || len(list.Devices)+left != len(offer.Devices) {
		t.Errorf("the list has %d bytes, %d devices are left out", n, left)
	}
}

// The longest ID with the number of its last share must not be longer than api.proto allows. No ID may be mistaken for a
// share.
func TestShareIDsAreShortEnough(t *testing.T) {
	r := Resource{Shares: 1000}
	for _, identity := range []string{strings.Repeat("long", 100), "a::1", "a:::::2", "x::"} {
		id := device.MakeID("node", identity)
		share := r.shareID(id, r.Shares-1)
		if len(share) > 63 {
			t.Errorf("%q has %d bytes", share, len(share))
		}
		if of, ok := r.deviceID(share); of != id || !ok {
			t.Errorf("%q is a share of %q, %t", share, of, ok)
		}
		if checkpoint.Parent(id) != id || checkpoint.Parent(share) != id {
			t.Errorf("parent(%q) = %q, parent(%q) = %q", id, checkpoint.Parent(id), share, checkpoint.Parent(share))
		}
	}
}
