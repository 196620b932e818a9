// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/checkpoint"
)

// FuzzPrefer checks that each answer is valid for the kubelet, or empty.
func FuzzPrefer(f *testing.F) {
	f.Add("a b c d e f g h", "g", 3, false, 1)
	f.Add("a::0 a::1 b::0 b::1", "a::1", 2, true, 2)
	f.Add("", "", 0, false, 0)
	f.Add("a a x", "x x", -1, true, -1)
	offer := server()
	f.Fuzz(func(t *testing.T, available, must string, n int, spread bool, shares int) {
		r := Resource{Name: "example.org/x", Spread: spread, Shares: shares}
		free, wanted := strings.Fields(available), strings.Fields(must)
		got := r.prefer(offer, free, wanted, n)
		if got == nil {
			return
		}
		if again := r.prefer(offer, free, wanted, n); !slices.Equal(got, again) {
			t.Errorf("it is %v, and then %v", got, again)
		}
		if len(got) != n || len(slices.Compact(slices.Sorted(slices.Values(got)))) != n {
			t.Errorf("prefer(%v, %v, %d) = %v", free, wanted, n, got)
		}
		for _, id := range got {
			if !slices.Contains(free, id) {
				t.Errorf("prefer(%v, %v, %d) = %v: %s is not available", free, wanted, n, got, id)
			}
		}
		for _, id := range wanted {
			if !slices.Contains(got, id) {
				t.Errorf("prefer(%v, %v, %d) = %v without %s", free, wanted, n, got, id)
			}
		}
	})
}

// FuzzShare checks that the ID of a share leads back to its device, and that no other ID does.
func FuzzShare(f *testing.F) {
	f.Add("a", 2, 1)
	f.Add("a::1", 3, 2)
	f.Add("::", 1, 0)
	f.Fuzz(func(t *testing.T, id string, shares, n int) {
		r := Resource{Shares: shares}
		if n < 0 || n >= max(1, shares) {
			return
		}
		share := r.shareID(id, n)
		if back, ok := r.deviceID(share); !ok || back != id {
			t.Errorf("share %d of %q is %q, of %q", n, id, share, back)
		}
		if shares > 1 && checkpoint.Parent(share) != id {
			t.Errorf("share %d of %q is %q, of %q", n, id, share, checkpoint.Parent(share))
		}
	})
}
