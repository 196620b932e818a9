// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/integration/udevtest"
)

func onlyDisks(o *inventory.Options) {
	o.Rules = []device.Rule{{Resource: nvmeResource, Class: &device.NVMe}}
}

// TestFirstSnapshotWaitsForReads reads several slow disks at the start. Together they take longer than the wait for one of them.
func TestFirstSnapshotWaitsForReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const mounts = "F: /proc/self/mountinfo=\n\n" // the same in all recordings
		var machine strings.Builder
		machine.WriteString(mounts)
		for n := range 5 {
			machine.WriteString(strings.TrimPrefix(blank(n, fmt.Sprintf("S%d", n), ""), mounts))
		}
		bus := make(chan bool, 1)
		r := start(t, udevtest.New(t, machine.String()), "", onlyDisks, settledSoon, func(o *inventory.Options) {
			o.Host.Touch.Probe = func(context.Context, device.Target, bool) (device.Report, error) {
				bus <- true
				<-time.After(o.Settle * 9 / 10) // the clock is that of the bubble
				<-bus
				return device.Report{}, nil
			}
		})
		s, _ := r.Snapshot()
		if got := len(s.Offer(nvmeResource).Devices); got != 5 {
			t.Errorf("the first snapshot has %d disks of 5", got)
		}
	})
}

// TestIncompleteFirstSnapshot uses a device that answers too late. The first snapshot must not wait for it, and the
// log must name the reason.
func TestIncompleteFirstSnapshot(t *testing.T) {
	const line = "device list incomplete at start"
	slow := make(chan struct{})
	for _, test := range []struct {
		name   string
		change func(*udevtest.Machine, *inventory.Options)
		want   string
	}{
		{"all is there", func(*udevtest.Machine, *inventory.Options) {}, ""},
		{"a disk is slow", func(_ *udevtest.Machine, o *inventory.Options) {
			o.Host.Touch.Probe = func(context.Context, device.Target, bool) (device.Report, error) {
				<-slow
				return device.Report{}, nil
			}
		}, "devices whose inspection is not finished: 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow = make(chan struct{}) // the channel must belong to this bubble
				var log strings.Builder
				m := udevtest.New(t, blank(0, "S0", ""))
				r := start(t, m, "", onlyDisks, settledSoon, func(o *inventory.Options) {
					o.Log = slog.New(slog.NewTextHandler(&log, nil))
					test.change(m, o)
				})
				synctest.Wait()
				if strings.Contains(log.String(), line) != (test.want != "") || !strings.Contains(log.String(), test.want) {
					t.Errorf("the log is %q, wanted %q", log.String(), test.want)
				}
				close(slow)
				r.end()
			})
		})
	}
}
