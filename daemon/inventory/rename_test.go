// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/integration/udevtest"
	"github.com/metalplug/metalplug/udev"
)

const fabricResource = "metalplug.io/infiniband"

// adapter returns the recording of an RDMA device with its current name.
func adapter(name, more string) string {
	return fmt.Sprintf(`P: /devices/virtual/infiniband/%[1]s
E: SUBSYSTEM=infiniband
A: node_guid=5054:00ff:fe12:3456
%[2]sA: ports/1/state=4: ACTIVE
A: ports/1/phys_state=5: LinkUp

P: /devices/virtual/infiniband_verbs/uverbs0
N: infiniband/uverbs0
E: SUBSYSTEM=infiniband_verbs
E: DEVNAME=/dev/infiniband/uverbs0
A: ibdev=%[1]s

P: /devices/virtual/misc/rdma_cm
N: infiniband/rdma_cm
E: SUBSYSTEM=misc
E: DEVNAME=/dev/infiniband/rdma_cm

`, name, more)
}

// TestRename checks that a new name of an adapter affects neither its pod nor the kubelet's list.
func TestRename(t *testing.T) {
	const (
		id  = "infiniband-505400fffe123456"
		old = "/sys/devices/virtual/infiniband/rxe0"
		now = "/sys/devices/virtual/infiniband/roce7"
	)
	said := regexp.MustCompile(`msg="(device [a-z ]*)"`)
	event := func(r *running, action, path string) {
		d := udev.Device{Subsystem: "infiniband", SysPath: path}
		if action == "move" {
			d.Properties = d.Properties.With("DEVPATH_OLD", "/devices/virtual/infiniband/rxe0")
		}
		r.machine.Send(udev.Event{Action: action, Device: d})
	}
	moved := func(r *running) { event(r, "move", now); clock.Pass(time.Second) }
	inspect := func(r *running) { r.Inspect(id) }
	wait := func(d time.Duration) func(*running) { return func(*running) { clock.Pass(d) } }
	rename := func(r *running) { r.machine.Silently(adapter("roce7", "")) }
	unplug := func(r *running) { r.machine.Silently("") }
	for _, c := range []struct {
		name  string
		steps []func(*running)
		said  []string // messages of the log
		path  string
		offer string
	}{
		{"told at once", []func(*running){rename, moved}, []string{"device moved"}, now, id + " Healthy"},
		{"inspected before udev reports the new name", []func(*running){rename, inspect, wait(time.Second), moved}, []string{"device moved"}, now, id + " Healthy"},
		{"inspected several times", []func(*running){rename, inspect, inspect, wait(time.Second), inspect, moved}, []string{"device moved"}, now, id + " Healthy"},
		{"inspected while it is half gone", []func(*running){func(r *running) {
			r.machine.Silently("P: /devices/virtual/infiniband/rxe0\nE: SUBSYSTEM=infiniband\n\n" + adapter("roce7", ""))
		}, inspect, rename, moved}, []string{"device moved"}, now, id + " Healthy"},
		{"udev reports the new name too late", []func(*running){rename, inspect, wait(3 * time.Second), moved}, []string{"device gone", "device moved", "device healthy"}, now, id + " Healthy"},
		{"told of an enumeration first", []func(*running){rename, func(r *running) { r.machine.Send(udev.Event{Action: udev.Overflow}) }, wait(time.Minute), moved}, []string{"device moved"}, now, id + " Healthy"},
		{"gone, and told", []func(*running){unplug, func(r *running) { event(r, "remove", old) }}, []string{"device gone"}, old, id + " Unhealthy (gone)"},
		{"gone without a report", []func(*running){unplug, inspect, wait(3 * time.Second)}, []string{"device gone"}, old, id + " Unhealthy (gone)"},
		{"gone for a moment", []func(*running){unplug, inspect, func(r *running) { r.machine.Silently(adapter("rxe0", "")) }, wait(time.Minute)}, nil, old, id + " Healthy"},
		{"gone, told, and back", []func(*running){unplug, func(r *running) { event(r, "remove", old) }, func(r *running) { r.machine.Plug(adapter("rxe0", "")) }}, []string{"device gone", "device healthy"}, old, id + " Healthy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				r := start(t, udevtest.New(t, adapter("rxe0", "")), "", func(o *inventory.Options) {
					o.Log = slog.New(slog.NewTextHandler(io.MultiWriter(&log, testWriter{t}), nil))
				})
				synctest.Wait()
				log.Reset()
				for _, step := range c.steps {
					step(r)
					synctest.Wait()
				}
				var got []string
				for _, m := range said.FindAllStringSubmatch(log.String(), -1) {
					got = append(got, m[1])
				}
				snapshot, _ := r.Snapshot()
				offer := snapshot.Offer(fabricResource)
				if describeOffer(offer) != c.offer || !reflect.DeepEqual(got, c.said) {
					t.Fatalf("%s; the log has %q\nwant %s, %q", describe(snapshot), got, c.offer, c.said)
				}
				if at := offer.Find(id).Device.SysPath; at != c.path {
					t.Errorf("it is at %s, want %s", at, c.path)
				}
			})
		})
	}
}
