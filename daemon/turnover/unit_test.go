// SPDX-License-Identifier: Apache-2.0

package turnover_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/turnover"
	"github.com/metalplug/metalplug/integration/clock"
)

const (
	initUnit    = "init@.service"
	startUnit   = "start@.service"
	releaseUnit = "release@.service"
)

// with returns a care with a vendor's steps.
func with(care turnover.Care, start, release string) turnover.Care {
	care.Units = turnover.Units{Start: start, Release: release}
	return care
}

var errUnit = errors.New("run it: failed: exit-code, status 3")

func TestStartUnit(t *testing.T) {
	for _, c := range []struct {
		name, device string
		care         turnover.Care
		first, again string
	}{
		{"alone", "widget0", nothing, "unit start@.service node-A-widget", "unit start@.service node-A-widget"},
		{
			"after a reset", "nvme1n1", zeroAtStart,
			"reset nvme1n1 nvme-controller, unit start@.service nvme-eui.11",
			"reset nvme1n1 nvme-controller, unit start@.service nvme-eui.11",
		},
		{"of a device that others use", "nvme1n1", sharedByHost, "unit start@.service nvme-eui.11", "unit start@.service nvme-eui.11"},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, disk(1, 1, 7)+widgets, with(c.care, startUnit, ""), func(b *bench) {
				b.ok(b.allocate("A", c.device))
				b.ok(b.start(c.device))
				b.want(c.device, c.first, "")
				b.ok(b.start(c.device))
				b.want(c.device, c.again, "")
				b.opens(c.device, "A")
				b.free(c.device) // after which nothing is asked for
				b.opens(c.device)
				clock.Pass(time.Minute)
				b.want(c.device, "", "")
			})
		})
	}
}

func TestStartUnitThatFails(t *testing.T) {
	play(t, disk(1, 1, 7), with(zeroAtStart, startUnit, ""), func(b *bench) {
		b.left("nvme1n1")
		b.ok(b.allocate("A", "nvme1n1"))
		b.fails(startUnit, errUnit)
		b.refused(b.start("nvme1n1"), "nvme-eui.11: run it: failed: exit-code, status 3")
		b.did()
		b.want("nvme1n1", "", "nvme-eui.11: run it: failed: exit-code, status 3")
		b.fails(startUnit, nil)
		b.ok(b.start("nvme1n1"))                                                                // as the kubelet tries again
		b.want("nvme1n1", "reset nvme1n1 nvme-controller, unit start@.service nvme-eui.11", "") // it is erased already
	})
}

// TestEndDuringStartUnit: what a step has written when we end is no reason for the next daemon not to start the container.
func TestEndDuringStartUnit(t *testing.T) {
	for _, crash := range []bool{false, true} {
		play(t, disk(1, 1, 7), with(zeroAtStart, startUnit, ""), func(b *bench) {
			b.used("A", "nvme1n1")
			b.free("nvme1n1")
			b.status("nvme1n1")
			b.ok(b.allocate("B", "nvme1n1"))
			b.meanwhile(startUnit, func(context.Context) error {
				b.meanwhile(startUnit, nil)
				b.write("nvme1n1", "an empty ext4")
				clock.Pass(time.Second) // whatever is to be kept is
				if crash {
					b.crash()
				} else {
					b.stop()
					b.begin()
				}
				return errUnit
			})
			b.refused(b.start("nvme1n1"), errUnit.Error())
			b.did()
			b.ok(b.start("nvme1n1"))
			b.want("nvme1n1", "reset nvme1n1 nvme-controller, erase nvme1n1 zero, unit start@.service nvme-eui.11", "")
		})
	}
}

func TestStartUnitThatHangs(t *testing.T) {
	for _, c := range []struct{ timeout, want time.Duration }{{5 * time.Second, 5 * time.Second}, {time.Hour, 25 * time.Second}} {
		care := with(nothing, startUnit, "")
		care.Timeout = c.timeout
		play(t, widgets, care, func(b *bench) {
			b.meanwhile(startUnit, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			b.ok(b.allocate("A", "widget0"))
			began := time.Now()
			b.refused(b.start("widget0"), "deadline exceeded")
			if took := time.Since(began); took != c.want {
				t.Errorf("it took %v, want %v", took, c.want)
			}
			b.did()
			b.want("widget0", "", "node-A-widget: context deadline exceeded")
		})
	}
}

// TestSidecarIsNotDisturbed: no step for a container while another of its pod works with the device.
func TestSidecarIsNotDisturbed(t *testing.T) {
	play(t, widgets, with(nothing, startUnit, ""), func(b *bench) {
		b.ok(b.allocate("A", "widget0"))
		b.ok(b.start("widget0"))
		b.did()
		b.opens("widget0", "A")
		b.ok(b.start("widget0"))
		b.want("widget0", "", "")
	})
}

func TestReleaseUnit(t *testing.T) {
	play(t, disk(1, 1, 7)+widgets, with(zeroAfter, "", releaseUnit), func(b *bench) {
		b.used("A", "nvme1n1")
		b.meanwhile(releaseUnit, func(context.Context) error { clock.Pass(5 * time.Second); return nil })
		b.free("nvme1n1")
		clock.Pass(time.Second)
		b.want("nvme1n1", "erase nvme1n1 zero, unit release@.service nvme-eui.11", cleared)
		b.refused(b.allocate("B", "nvme1n1"), cleared)
		clock.Pass(5 * time.Second)
		b.want("nvme1n1", "", "")
		b.ok(b.allocate("B", "nvme1n1"))
	})
	play(t, widgets, with(nothing, "", releaseUnit), func(b *bench) {
		b.used("A", "widget0")
		b.did()
		b.refused(b.allocate("B", "widget0"), "left by the last pod") // the kubelet is faster than we are
		b.owners = make(map[string][]string)
		b.want("widget0", "unit release@.service node-A-widget", "")
	})
}

// TestReleaseUnitThatFails: it is tried again, less and less often, and the disk is not erased each time.
func TestReleaseUnitThatFails(t *testing.T) {
	play(t, disk(1, 1, 7), with(zeroAfter, "", releaseUnit), func(b *bench) {
		b.used("A", "nvme1n1")
		b.fails(releaseUnit, errUnit)
		b.free("nvme1n1")
		const why = "nvme-eui.11: run it: failed: exit-code, status 3"
		b.want("nvme1n1", "erase nvme1n1 zero, unit release@.service nvme-eui.11", why)
		for _, wait := range []time.Duration{10, 20, 40, 80, 160, 320, 600, 600} {
			clock.Pass(wait*time.Second - time.Millisecond)
			b.want("nvme1n1", "", why)
			clock.Pass(time.Millisecond)
			b.want("nvme1n1", "unit release@.service nvme-eui.11", why)
		}
		b.ok(b.turnover.ByHand(context.Background(), idOf("nvme1n1"), "zero")) // which does not take its place
		b.want("nvme1n1", "erase nvme1n1 zero", cleared)
		b.fails(releaseUnit, nil)
		b.crash()
		b.want("nvme1n1", "unit release@.service nvme-eui.11", "") // that it is erased is kept
	})
}

// TestReloadWhileReleaseUnitFails: what a reload asks for beside the step is done, once.
func TestReloadWhileReleaseUnitFails(t *testing.T) {
	for _, before := range []turnover.Care{nothing, zeroAtStart} {
		play(t, disk(1, 1, 7), with(before, "", releaseUnit), func(b *bench) {
			b.used("A", "nvme1n1")
			b.fails(releaseUnit, errUnit)
			b.free("nvme1n1")
			b.want("nvme1n1", "unit release@.service nvme-eui.11", "nvme-eui.11: run it: failed: exit-code, status 3")
			b.set(with(zeroAfter, "", "other@.service"))
			<-b.inventory.SetRules(b.rules(), nil)
			b.fails("other@.service", errUnit)
			clock.Pass(25 * time.Second)
			b.fails("other@.service", nil)
			clock.Pass(time.Minute)
			b.want("nvme1n1", "erase nvme1n1 zero, unit other@.service nvme-eui.11, unit other@.service nvme-eui.11", "")
		})
	}
}

func TestInitHoldsBack(t *testing.T) {
	play(t, widgets, nothing, func(b *bench) {
		const why = "node-A-widget: run it: failed: exit-code, status 3"
		b.want("widget0", "unit init@.service node-A-widget", "")
		b.fails(initUnit, errUnit)
		b.machine.Unplug("/sys/devices/virtual/widget/widget0")
		clock.Pass(time.Hour) // until what init has done to it has settled, too
		b.machine.Apply(mounts + widgets)
		b.want("widget0", "unit init@.service node-A-widget", why)
		b.refused(b.allocate("A", "widget0"), why)
		for _, wait := range []time.Duration{10, 20, 40, 80, 160, 320, 600, 600} {
			clock.Pass(wait*time.Second - time.Millisecond)
			b.want("widget0", "", why)
			clock.Pass(time.Millisecond)
			b.want("widget0", "unit init@.service node-A-widget", why)
		}
		b.fails(initUnit, nil)
		clock.Pass(10 * time.Minute)
		b.want("widget0", "unit init@.service node-A-widget", "")
		b.ok(b.allocate("A", "widget0"))
	}, initUnit)
}

func TestNotOfferedWhileItIsInitialised(t *testing.T) {
	play(t, "", nothing, func(b *bench) {
		b.meanwhile(initUnit, func(context.Context) error { clock.Pass(time.Minute); return nil })
		b.machine.Apply(mounts + widgets)
		clock.Pass(30 * time.Second)
		b.want("widget0", "unit init@.service node-A-widget", "being initialised")
		clock.Pass(31 * time.Second)
		b.want("widget0", "", "")
	}, initUnit)
}

// TestInitOnce: neither a restart of ours, nor a pod, nor its end makes for another one; the next appearance does.
func TestInitOnce(t *testing.T) {
	play(t, widgets, resetOnly, func(b *bench) {
		b.status("widget0")
		b.did()
		clock.Pass(time.Second)
		b.crash()
		b.want("widget0", "", "")
		b.used("A", "widget0")
		b.free("widget0")
		clock.Pass(time.Minute)
		b.want("widget0", "", "")
		b.machine.Unplug("/sys/devices/virtual/widget/widget0")
		synctest.Wait()
		b.machine.Apply(mounts + widgets)
		b.want("widget0", "unit init@.service node-A-widget", "")
	}, initUnit)
}

// TestInitOfADeviceThatAPodHolds: not while it works with it, but before its next container and after it.
func TestInitOfADeviceThatAPodHolds(t *testing.T) {
	replug := func(b *bench) {
		b.status("widget0")
		clock.Pass(time.Minute)
		b.ok(b.allocate("A", "widget0"))
		b.ok(b.start("widget0"))
		b.did()
		b.machine.Unplug("/sys/devices/virtual/widget/widget0")
		clock.Pass(time.Minute)
		b.machine.Apply(mounts + widgets)
		clock.Pass(time.Minute)
		b.want("widget0", "", "")
	}
	play(t, widgets, with(nothing, startUnit, ""), func(b *bench) {
		replug(b)
		b.fails(initUnit, errUnit)
		b.refused(b.start("widget0"), errUnit.Error())
		b.fails(initUnit, nil)
		b.did()
		b.ok(b.start("widget0"))
		b.want("widget0", "unit init@.service node-A-widget, unit start@.service node-A-widget", "")
	}, initUnit)
	play(t, widgets, nothing, func(b *bench) {
		replug(b)
		b.free("widget0")
		b.want("widget0", "unit init@.service node-A-widget", "")
	}, initUnit)
}

// TestInitThatBringsOtherHardware: firmware that makes a device drop off the bus and come back is loaded once.
func TestInitThatBringsOtherHardware(t *testing.T) {
	play(t, widgets, nothing, func(b *bench) {
		b.machine.Unplug("/sys/devices/virtual/widget/widget0")
		clock.Pass(time.Minute)
		b.did()
		b.meanwhile(initUnit, func(context.Context) error {
			time.AfterFunc(time.Second, func() { b.machine.Unplug("/sys/devices/virtual/widget/widget0") })
			time.AfterFunc(3*time.Second, func() { b.machine.Apply(mounts + widgets) })
			clock.Pass(2 * time.Second)
			return nil
		})
		b.machine.Apply(mounts + widgets)
		clock.Pass(time.Hour)
		b.want("widget0", "unit init@.service node-A-widget", "")
	}, initUnit)
}

func TestReloadBringsAnInit(t *testing.T) {
	play(t, widgets, nothing, func(b *bench) {
		b.want("widget0", "", "")
		for _, c := range []struct{ init, want string }{
			{initUnit, "unit init@.service node-A-widget"},
			{initUnit, ""},
			{"", ""},
			{"other@.service", "unit other@.service node-A-widget"},
		} {
			b.init = c.init
			b.set(nothing)
			<-b.inventory.SetRules(b.rules(), nil)
			b.want("widget0", c.want, "")
		}
	})
}
