// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/udev/udevtest"
)

// reply is what a probe comes to.
type reply struct {
	reading device.Reading
	err     error
}

// replies lets disks be probed with that outcome, which may change; what a pod has is not read.
func replies(r *atomic.Pointer[reply]) func(*inventory.Options) {
	return func(o *inventory.Options) {
		o.Host.Touch.Probe = func(_ context.Context, _ device.Target, held bool) (device.Reading, error) {
			now := *r.Load()
			if held {
				now.reading.Content = ""
			}
			return now.reading, now.err
		}
	}
}

const (
	unproven    = "not complete: it cannot be proven empty: no answer: not over after 16s"
	takenToBeAs = "taken to be as it was: " + unproven
)

// TestNoAnswer: that nobody says what is on a disk changes nothing about it, for a while; and proves nothing.
func TestNoAnswer(t *testing.T) {
	silent := reply{err: fmt.Errorf("%w: not over after 16s", device.ErrUnanswered)}
	blank := reply{}
	readOnly := reply{reading: device.Reading{Smart: device.Smart{Known: true, Warning: 8}}}
	const healthy = diskID + " Healthy"
	unhealthy := func(reason string) string { return diskID + " Unhealthy (" + reason + ")" }
	wait := func(d time.Duration) func(*running) { return func(*running) { clock.Pass(d) } }
	look := func(r *running) { r.LookAgain(diskID) }
	hold := func(r *running) {
		r.Allocated(map[string][]string{diskID: {diskID}}, "")
		clock.Pass(time.Second)
		look(r)
	}
	tenant := func(r *running) {
		r.Allocated(map[string][]string{diskID: {diskID}}, "")
		r.did(diskID, inventory.Outcome{Event: lease.Start})
		synctest.Wait()
		r.did(diskID, inventory.Outcome{Event: lease.Cleared})
		r.Released([]string{diskID})
	}
	type step struct {
		reply   reply
		do      func(*running)
		offer   string
		warning string
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"never an answer", []step{{silent, look, "", ""}, {silent, wait(time.Hour), "", ""}, {blank, wait(time.Hour), healthy, ""}}},
		{"once no answer", []step{{blank, look, healthy, ""}, {silent, look, healthy, takenToBeAs}, {blank, wait(time.Second), healthy, ""}}},
		{"no answer for as long as hardware may take", []step{
			{blank, look, healthy, ""},
			{silent, look, healthy, takenToBeAs},
			{silent, wait(59 * time.Second), healthy, takenToBeAs},
			{silent, wait(20 * time.Second), unhealthy(unproven), ""},
			{silent, wait(time.Hour), unhealthy(unproven), ""},
			{blank, wait(time.Hour), healthy, ""},
			{silent, look, healthy, takenToBeAs},
		}},
		{"data, after no answer", []step{
			{blank, look, healthy, ""},
			{silent, look, healthy, takenToBeAs},
			{reply{reading: device.Reading{Content: "ext4"}}, wait(time.Minute), unhealthy("in use: it holds data: ext4 is on it"), ""},
			{silent, look, unhealthy(unproven), ""},
		}},
		{"in use", []step{
			{blank, look, healthy, ""},
			{reply{err: fmt.Errorf("%w: x", device.ErrInUse)}, look, unhealthy("in use: x"), ""},
			{silent, look, unhealthy(unproven), ""},
		}},
		{"an answer that it cannot be read", []step{
			{blank, look, healthy, ""}, {reply{err: errors.New("I/O error")}, look, unhealthy("not complete: it cannot be proven empty: I/O error"), ""},
		}},
		{"sick", []step{
			{blank, look, healthy, ""},
			{readOnly, look, unhealthy("SMART: its media is read-only"), ""},
			{silent, look, unhealthy(unproven), ""},
		}},
		{"sick in the hands of a pod", []step{
			{blank, look, healthy, ""},
			{readOnly, hold, unhealthy("SMART: its media is read-only"), ""},
			{silent, look, unhealthy("SMART: its media is read-only"), ""},
			{blank, look, healthy, ""},
			{silent, look, healthy, ""},
		}},
		{"another disk", []step{{blank, look, healthy, ""}, {silent, func(r *running) { r.machine.Apply(diskOf(8)) }, unhealthy(unproven), ""}}},
		{"gone, and back", []step{
			{blank, look, healthy, ""},
			{silent, look, healthy, takenToBeAs},
			{silent, func(r *running) { r.machine.Apply("F: /proc/self/mountinfo=\n") }, unhealthy("gone"), ""},
			{silent, func(r *running) { r.machine.Apply(diskOf(7)) }, unhealthy(unproven), ""},
		}},
		{"a pod has had it", []step{{blank, look, healthy, ""}, {silent, tenant, unhealthy(unproven), ""}, {blank, wait(time.Minute), healthy, ""}}},
		{"other rules", []step{{blank, look, healthy, ""}, {silent, func(r *running) { <-r.SetRules(rules, nil) }, unhealthy(unproven), ""}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var now atomic.Pointer[reply]
				now.Store(&c.steps[0].reply)
				r := start(t, udevtest.New(t, diskOf(7)), "", replies(&now))
				for i, s := range c.steps {
					now.Store(&s.reply)
					s.do(r)
					synctest.Wait()
					snapshot, _ := r.Snapshot()
					warning := ""
					if d := snapshot.Offer(nvmeResource).Find(diskID); d != nil {
						warning = d.Warning
					}
					if got := describeOffer(snapshot.Offer(nvmeResource)); got != s.offer || warning != s.warning {
						t.Fatalf("step %d: %s, warning %q\nwant %q, warning %q", i, describe(snapshot), warning, s.offer, s.warning)
					}
				}
			})
		})
	}
}
