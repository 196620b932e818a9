// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/integration/udevtest"
	"github.com/metalplug/metalplug/udev"
)

// wedge simulates a disk whose inspection hangs even after the end of its context, like a register read of a hung PCIe
// device.
type wedge struct {
	probes atomic.Int64
	until  atomic.Pointer[chan struct{}] // nil if the device answers
}

func (w *wedge) probe(context.Context, device.Target, bool) (device.Report, error) {
	w.probes.Add(1)
	if until := w.until.Load(); until != nil {
		<-*until
	}
	return device.Report{}, nil
}

// hang makes inspections hang from now on. The returned function makes the device answer.
func (w *wedge) hang(t *testing.T) (answer func()) {
	until := make(chan struct{})
	w.until.Store(&until)
	answer = sync.OnceFunc(func() {
		w.until.Store(nil)
		close(until)
	})
	t.Cleanup(answer)
	return answer
}

// TestStuckInspection uses a device that does not answer for a minute. The device must be Unhealthy until it answers. It must not
// occupy a slot for inspections, and its events must not need memory or goroutines.
func TestStuckInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wedge
		r := start(t, udevtest.New(t, blank(1, "0011", "")), "", func(o *inventory.Options) { o.Host.Touch.Probe = w.probe })
		const diskID = "nvme-eui.0011"
		const healthy, stuck = diskID + " Healthy", diskID + " Unhealthy (the hardware has not answered for 1m0s)"
		r.waitOffer(nvmeResource, healthy)
		answer := w.hang(t)
		r.Inspect(diskID)
		synctest.Wait()
		probes, running := w.probes.Load(), goroutines()
		r.flood(1000)
		r.machine.Plug(widget("widget0", "A"))
		r.waitOffer("example.org/widget", "node-A-widget Healthy")
		clock.Pass(59 * time.Second)
		r.waitOffer(nvmeResource, healthy)
		clock.Pass(time.Second)
		r.waitOffer(nvmeResource, stuck)
		r.flood(1000)
		clock.Pass(time.Hour)
		r.waitOffer(nvmeResource, stuck)
		synctest.Wait() // waits until the work that was due at that moment is done
		if again, now := w.probes.Load()-probes, goroutines()-running; again != 0 || now > 0 {
			t.Errorf("while one probe hung, there were %d more, and %d goroutines", again, now)
		}
		answer()
		synctest.Wait()
		r.waitOffer(nvmeResource, healthy)
		if again := w.probes.Load() - probes; again != 1 {
			t.Errorf("%d probes for all that came in between", again)
		}
	})
}

// goroutines returns the number of goroutines in synctest bubbles. It omits goroutines of the runtime, because a garbage
// collection may start some.
func goroutines() int {
	stacks := make([]byte, 1<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte(", synctest bubble "))
}

// TestStopWhileInspectionHangs checks that the inventory stops without waiting for a hanging inspection.
func TestStopWhileInspectionHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wedge
		r := start(t, udevtest.New(t, blank(1, "0011", "")), "", func(o *inventory.Options) { o.Host.Touch.Probe = w.probe })
		w.hang(t)
		r.Inspect("nvme-eui.0011")
		synctest.Wait()
		r.end()
	})
}

// flood sends events of the disk, and waits until each is processed before it sends the next.
func (r *running) flood(n int) {
	r.t.Helper()
	devices, err := r.machine.Enumerate()
	if err != nil {
		r.t.Fatal(err)
	}
	for range n {
		for _, d := range devices {
			if d.Subsystem == "block" {
				r.machine.Send(udev.Event{Action: "change", Device: d})
			}
		}
		synctest.Wait()
	}
}
