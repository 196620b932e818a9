// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/checkpoint"
	"github.com/metalplug/metalplug/daemon/device"
)

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
