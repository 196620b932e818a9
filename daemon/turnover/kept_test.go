// SPDX-License-Identifier: Apache-2.0

package turnover_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/turnover"
	"github.com/metalplug/metalplug/integration/clock"
)

// full lets nothing be written to the state directory, until it has room again.
func (b *bench) full() {
	b.t.Helper()
	b.ok(os.MkdirAll(b.state+"/state.json.new/full", 0o755)) // where it would be written
}

func (b *bench) room() {
	b.t.Helper()
	b.ok(os.RemoveAll(b.state + "/state.json.new"))
}

// unkept wants a disk that waits for its erasure to be kept.
func (b *bench) unkept(name string) {
	b.t.Helper()
	s := b.status(name)
	b.refused(errors.New(s.Reason), "that it was erased could be forgotten")
	if s.Healthy {
		b.t.Error("it is offered")
	}
}

// TestErasureThatCannotBeKept: the disk is erased once, and offered when that is kept. Until then it is left alone, but for the
// look that any disk is given now and then.
func TestErasureThatCannotBeKept(t *testing.T) {
	for _, c := range []struct {
		care turnover.Care
		then string // what is done once it is kept
	}{{zeroAfter, ""}, {with(zeroAfter, "", releaseUnit), "unit release@.service nvme-eui.11"}} {
		play(t, disk(1, 1, 7)+disk(2, 1, 8), c.care, func(b *bench) {
			b.used("A", "nvme1n1")
			b.full()
			b.free("nvme1n1")
			b.unkept("nvme1n1")
			b.lookedAt("nvme1n1")
			b.lookedAt("nvme2n1")
			clock.Pass(time.Hour)
			b.unkept("nvme1n1")
			probes, holders := b.lookedAt("nvme1n1")
			if idle, _ := b.lookedAt("nvme2n1"); probes != idle || holders != 0 {
				t.Errorf("it was probed %d times, an idle one %d times; who has it open was asked %d times", probes, idle, holders)
			}
			if did := b.did(); did != "erase nvme1n1 zero" {
				t.Errorf("the helpers were asked for %q", did)
			}
			b.room()
			clock.Pass(10 * time.Minute)
			b.want("nvme1n1", c.then, "")
		})
	}
}

// TestErasureIsKeptBeforeTheStep: the vendor's step may be the first that uses an erased disk.
func TestErasureIsKeptBeforeTheStep(t *testing.T) {
	play(t, disk(1, 1, 7), with(zeroAfter, "", releaseUnit), func(b *bench) {
		b.used("A", "nvme1n1")
		var kept string
		b.meanwhile(releaseUnit, func(context.Context) error {
			text, err := os.ReadFile(b.state + "/state.json")
			kept = string(text)
			return err
		})
		b.free("nvme1n1")
		b.want("nvme1n1", "erase nvme1n1 zero, unit release@.service nvme-eui.11", "")
		if !strings.Contains(kept, `"dirty":true`) || strings.Contains(kept, `"leftover":true`) {
			t.Errorf("during the step this was kept:\n%s", kept)
		}
	})
}

// TestErasureByHandThatCannotBeKept: nor is one offered that its resource never erases by itself.
func TestErasureByHandThatCannotBeKept(t *testing.T) {
	play(t, disk(1, 1, 7), nothing, func(b *bench) {
		b.used("A", "nvme1n1")
		b.free("nvme1n1")
		clock.Pass(time.Minute)
		b.meanwhile("erase", func(context.Context) error { b.full(); return nil })
		b.refused(b.turnover.ByHand(context.Background(), idOf("nvme1n1"), "zero"), "that it was erased could be forgotten")
		b.unkept("nvme1n1")
		b.room()
		clock.Pass(10 * time.Minute)
		b.want("nvme1n1", "erase nvme1n1 zero", "")
	})
}

// TestNothingErasedNeedsNotBeKept: what a pod has left on a disk that is erased at the start stays until then, also when
// nothing can be kept as the pod goes, and the daemon after that.
func TestNothingErasedNeedsNotBeKept(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.used("A", "nvme1n1")
		clock.Pass(time.Second)
		b.full()
		b.free("nvme1n1")
		b.want("nvme1n1", "", "")
		b.room()
		clock.Pass(2 * time.Second)
		b.crash()
		synctest.Wait()
		b.want("nvme1n1", "", "")
	})
}
