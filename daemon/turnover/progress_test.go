// SPDX-License-Identifier: Apache-2.0

package turnover_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

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
						b.want("nvme1n1", all, "")
					})
				})
			}
		}
	}
}

// TestReloadThereAndBack: what an erasure that a reload asks for leaves when it fails is not what the one of before has left.
func TestReloadThereAndBack(t *testing.T) {
	play(t, disk(1, 1, 7), with(zeroAfter, "", releaseUnit), func(b *bench) {
		reload := func(scrub string) {
			b.care.Scrub = scrub
			b.turnover.Set(map[string]turnover.Care{diskResource: b.care, widgetResource: b.care})
			clock.Pass(10 * time.Minute)
		}
		b.used("A", "nvme1n1")
		b.fails(releaseUnit, errUnit)
		b.free("nvme1n1")
		b.status("nvme1n1")
		b.broken(errMedia)
		reload("discard")
		b.fails(releaseUnit, nil)
		reload("zero")
		b.refused(errors.New(b.status("nvme1n1").Reason), "zero nvme-eui.11: media error")
		b.did()
		b.broken(nil)
		clock.Pass(10 * time.Minute)
		b.want("nvme1n1", "erase nvme1n1 zero, unit release@.service nvme-eui.11", "")
	})
}
