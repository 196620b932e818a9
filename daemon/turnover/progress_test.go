// SPDX-License-Identifier: Apache-2.0

package turnover_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/turnover"
	"github.com/metalplug/metalplug/integration/clock"
)

var errMedia = errors.New("media error")

// broken lets every reset and erasure fail, until err is nil.
func (b *bench) broken(err error) {
	b.fails("reset", err)
	b.fails("erase", err)
}

// TestFailureByHandIsNotForgotten: a disk waits, reset and erased, for that to be kept or for its vendor's step. What fails
// by hand meanwhile is mended before it is offered.
func TestFailureByHandIsNotForgotten(t *testing.T) {
	both := resetAfter
	both.Scrub, both.Timeout = "zero", time.Hour
	hindrances := []struct {
		name, release string // its unit
		hinder, mend  func(*bench)
	}{
		{"full", "", (*bench).full, (*bench).room},
		{"its step fails", releaseUnit, func(b *bench) { b.fails(releaseUnit, errUnit) }, func(b *bench) { b.fails(releaseUnit, nil) }},
	}
	for _, scrub := range []string{"", "zero"} {
		for _, care := range []turnover.Care{zeroAfter, both} {
			for _, c := range hindrances {
				t.Run(fmt.Sprintf("%s, %s %s, by hand %q", c.name, care.Method, care.Scrub, scrub), func(t *testing.T) {
					play(t, disk(1, 1, 7), with(care, "", c.release), func(b *bench) {
						b.used("A", "nvme1n1")
						c.hinder(b)
						b.free("nvme1n1")
						b.status("nvme1n1")
						all := b.did()
						b.broken(errMedia)
						b.refused(b.turnover.ByHand(context.Background(), idOf("nvme1n1"), scrub), errMedia.Error())
						c.mend(b)
						clock.Pass(10 * time.Minute)
						b.refused(errors.New(b.status("nvme1n1").Reason), errMedia.Error())
						b.did()
						b.broken(nil)
						clock.Pass(10 * time.Minute)
						if scrub == "" { // it is erased already, and the reset is to be made good
							all = strings.Replace(all, "erase nvme1n1 zero", "reset nvme1n1 nvme-controller", 1)
							all = strings.Replace(all, "nvme-controller, reset nvme1n1 nvme-controller", "nvme-controller", 1)
						}
						b.want("nvme1n1", all, "")
					})
				})
			}
		}
	}
}

// TestFailureByHandStays where nothing that the resource asks for makes good for it, also after a crash, until somebody has
// done by hand what went wrong, or more.
func TestFailureByHandStays(t *testing.T) {
	open := always
	open.Open = true
	for _, c := range []struct {
		name    string
		care    turnover.Care
		scrub   string // what fails by hand
		dirty   bool   // a pod has had it
		instead string // what is enough by hand; empty: to do the same
	}{
		{"a reset where nothing is done", nothing, "", true, ""},
		{"a reset of one that no pod has had", nothing, "", false, ""},
		{"an erasure where nothing is done", nothing, "zero", true, ""},
		{"an erasure where it is only reset", resetAfter, "zero", true, ""},
		{"a reset of what others have open", open, "", false, ""},
		{"an erasure of what others have open", open, "zero", false, ""},
		{"a reset, and then it is erased", nothing, "", true, "zero"},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, disk(1, 1, 7), c.care, func(b *bench) {
				byHand := func(scrub string) error { return b.turnover.ByHand(context.Background(), idOf("nvme1n1"), scrub) }
				stays := func(when string) {
					t.Helper()
					if s := b.status("nvme1n1"); s.Healthy || !strings.Contains(s.Reason, "by hand: ") || !strings.Contains(s.Reason, errMedia.Error()) {
						t.Errorf("%s: healthy %v, reason %q", when, s.Healthy, s.Reason)
					}
				}
				if c.dirty { // and has written nothing
					b.ok(b.allocate("A", "nvme1n1"))
					b.ok(b.start("nvme1n1"))
					b.free("nvme1n1")
					clock.Pass(time.Minute)
				}
				b.broken(errMedia)
				b.refused(byHand(c.scrub), errMedia.Error())
				b.broken(nil)
				b.did()
				clock.Pass(time.Hour)
				stays("an hour later")
				b.crash()
				clock.Pass(time.Hour)
				stays("after a crash")
				if did := b.did(); did != "" {
					t.Errorf("it was asked for %q", did)
				}
				if c.scrub != "" {
					b.ok(byHand(""))
					clock.Pass(time.Hour)
					stays("after a reset")
				}
				b.ok(byHand(cmp.Or(c.instead, c.scrub)))
				clock.Pass(time.Minute)
				if s := b.status("nvme1n1"); !s.Healthy {
					t.Errorf("in the end: %q", s.Reason)
				}
			})
		})
	}
}

// TestResetByHandBeforeTheStep: a reset by hand that goes well after one that did not has the vendor's step go on.
func TestResetByHandBeforeTheStep(t *testing.T) {
	play(t, disk(1, 1, 7), with(nothing, "", releaseUnit), func(b *bench) {
		byHand := func() error { return b.turnover.ByHand(context.Background(), idOf("nvme1n1"), "") }
		b.ok(b.allocate("A", "nvme1n1"))
		b.ok(b.start("nvme1n1"))
		b.fails(releaseUnit, errUnit)
		b.free("nvme1n1")
		b.status("nvme1n1")
		b.broken(errMedia)
		b.refused(byHand(), errMedia.Error())
		b.broken(nil)
		b.fails(releaseUnit, nil)
		b.did()
		clock.Pass(time.Hour)
		b.want("nvme1n1", "", "reset by hand: nvme-controller nvme-eui.11: media error")
		b.ok(byHand())
		clock.Pass(10 * time.Minute)
		b.want("nvme1n1", "reset nvme1n1 nvme-controller, unit release@.service nvme-eui.11", "")
	})
}

// TestNothingToTouch: where the hardware is a recording, that is what is said.
func TestNothingToTouch(t *testing.T) {
	play(t, disk(1, 1, 7), nothing, func(b *bench) {
		of := &turnover.Turnover{Inventory: b.inventory, Host: &device.Host{}, Log: b.turnover.Log, Care: b.careOf}
		for _, scrub := range []string{"", "zero"} {
			b.refused(of.ByHand(context.Background(), idOf("nvme1n1"), scrub), "the hardware is a recording")
		}
	})
}
