// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/integration/udevtest"
)

// TestWorkersTakeTurns uses a worker that takes a device again right after each release, as the worker that reads a disk
// does. A waiting worker must get the device first. A worker that has given up must not block it.
func TestWorkersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, udevtest.New(t, widget("w0", "A")+widget("w1", "B")), "")
		a, both := []string{"node-A-w"}, []string{"node-B-w", "node-A-w"}
		order := make(chan string, 4)
		take := func(ctx context.Context, name string, ids []string) {
			if _, err := r.Take(ctx, ids); err != nil {
				name = err.Error()
			}
			order <- name
		}
		take(t.Context(), "first", a)
		impatient, giveUp := context.WithCancel(t.Context())
		go take(impatient, "impatient", a)
		synctest.Wait()
		go take(t.Context(), "both", both)
		synctest.Wait()
		giveUp()
		synctest.Wait()
		r.End(a, inventory.Outcome{})
		go take(t.Context(), "first again", a)
		synctest.Wait()
		r.End(both, inventory.Outcome{})
		synctest.Wait()
		close(order)
		var got []string
		for name := range order {
			got = append(got, name)
		}
		if want := []string{"first", "wait for a worker: context canceled", "both", "first again"}; !slices.Equal(got, want) {
			t.Errorf("devices were given in the order %q", got)
		}
	})
}

// TestClaimDuringWorkForAnother gives a device to a claim while it is prepared for an earlier claim. The device must then be
// prepared for the new claim too.
func TestClaimDuringWorkForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const id = "node-A-w"
		r := start(t, udevtest.New(t, widget("w0", "A")), "", func(o *inventory.Options) { o.Rules[0].Claims = 1 })
		for _, uid := range []string{"c1", "c2"} {
			if err := r.Claim(t.Context(), api.ClaimRef{UID: uid}, []string{id}); err != nil {
				t.Fatal(err)
			}
			if uid == "c2" {
				continue
			}
			if _, err := r.Begin(t.Context(), id, lease.Prepare, "", unchecked); err != nil {
				t.Fatal(err)
			}
			if err := r.Unclaim(t.Context(), uid); err != nil {
				t.Fatal(err)
			}
		}
		r.End([]string{id}, inventory.Outcome{Event: lease.Start, Tenants: []string{lease.OfClaim("c1")}})
		if s, err := r.Current(t.Context(), id); err != nil || !s.Claims.Has("c2") || s.State != lease.Allocated || s.Claims.Ready("c2") {
			t.Errorf("after the work it is %v of claim %v, %v", s.Lease, s.Claims, err)
		}
	})
}

// unchecked lets work begin on any device.
func unchecked(*inventory.Current) error { return nil }
