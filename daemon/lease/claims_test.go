// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"testing"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/lease"
)

// A device is prepared for each claim, and again after a boot.
func TestClaims(t *testing.T) {
	all := lease.Claims{{ClaimRef: api.ClaimRef{UID: "c1"}}, {ClaimRef: api.ClaimRef{UID: "c2"}}}
	one := all.Started([]string{lease.OfClaim("c1")})
	both := one.Started([]string{lease.OfClaim("c2"), lease.OfClaim("c3")})
	if all.Ready("c1") || !one.Ready("c1") || one.Ready("c2") || !both.Ready("c1") || !both.Ready("c2") || both.Ready("c3") {
		t.Errorf("%v, then %v, then %v", all, one, both)
	}
	if booted := both.Rebooted(); booted.Ready("c1") || booted.Ready("c2") || !booted.Has("c2") || !both.Ready("c2") {
		t.Errorf("after a boot: %v", booted)
	}
	if left := both.Without("c1"); left.Has("c1") || !left.Ready("c2") || len(both) != 2 {
		t.Errorf("without c1: %v", left)
	}
}
