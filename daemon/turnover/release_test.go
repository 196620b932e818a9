// SPDX-License-Identifier: Apache-2.0

package turnover_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/turnover"
	"github.com/metalplug/metalplug/integration/clock"
)

// adoptable is the reason of the first disk with a file system on it that no pod of this node has left there, or that is not
// erased.
func adoptable(whose string) string {
	return "unproven: " + whose + " ext4 is on it; metalplugctl adopt nvme-eui.11 erases and offers it"
}

const cleared = "being cleared after its last pod"

// used has a pod start with a disk and write to it.
func (b *bench) used(pod, name string) {
	b.t.Helper()
	b.ok(b.allocate(pod, name))
	b.ok(b.start(name))
	b.write(name, pod+"'s ext4")
	synctest.Wait()
	b.did()
}

// left lets a disk have what a pod of this node has left there.
func (b *bench) left(name string) {
	b.t.Helper()
	b.used("Z", name)
	b.free(name)
	clock.Pass(time.Second)
	if s := b.status(name); !s.Leftover || s.Dirty {
		b.t.Fatalf("%+v", s)
	}
	b.did()
}

func TestRelease(t *testing.T) {
	for _, c := range []struct {
		name, device string
		care         turnover.Care
		done         string // what the helpers are asked for when the pod has gone
		reason       string // why it is Unhealthy then
		next         string // what they are asked for before the next pod starts
	}{
		{"erased", "nvme1n1", zeroAfter, "erase nvme1n1 zero", "", ""},
		{"reset and erased, twice", "nvme1n1", always, "reset nvme1n1 nvme-controller, erase nvme1n1 zero", "", "reset nvme1n1 nvme-controller"},
		{"erased before the next", "nvme1n1", zeroAtStart, "", "", "reset nvme1n1 nvme-controller, erase nvme1n1 zero"},
		{"only reset", "nvme1n1", resetAfter, "reset nvme1n1 nvme-controller", adoptable("A's"), ""},
		{"left as it is", "nvme1n1", nothing, "", adoptable("A's"), ""},
		{"a widget", "widget0", resetAfter, "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, disk(1, 1, 7)+widgets, c.care, func(b *bench) {
				b.used("A", c.device)
				b.free(c.device)
				b.want(c.device, c.done, c.reason)
				if c.reason != "" {
					return
				}
				if s := b.status(c.device); s.Dirty || s.Pending || s.Held || s.Pods != nil {
					t.Errorf("%+v", s)
				}
				b.ok(b.allocate("B", c.device))
				b.ok(b.start(c.device))
				b.want(c.device, c.next, "")
				if c.device != "widget0" && b.content[c.device] != "" {
					t.Errorf("the next pod sees %s", b.content[c.device])
				}
			})
		})
	}
}

func TestQuarantineWhileErasing(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
		b.used("A", "nvme1n1")
		b.meanwhile("erase", func(context.Context) error { clock.Pass(30 * time.Minute); return nil })
		b.free("nvme1n1")
		b.want("nvme1n1", "erase nvme1n1 zero", cleared)
		b.refused(b.allocate("B", "nvme1n1"), cleared)
		clock.Pass(time.Hour)
		b.want("nvme1n1", "", "")
	})
}

// TestKubeletGivesItAwayBeforeWeKnow: the kubelet takes a device from a pod that has ended and gives it to the next, and
// tells nobody that the first is gone.
func TestKubeletGivesItAwayBeforeWeKnow(t *testing.T) {
	for _, care := range []turnover.Care{zeroAfter, always} {
		play(t, disk(1, 1, 7), care, func(b *bench) {
			b.used("A", "nvme1n1")
			b.refused(b.allocate("B", "nvme1n1"), "left by the last pod")
			b.status("nvme1n1")
			if did := b.did(); !strings.Contains(did, "erase nvme1n1 zero") { // that was how we heard of it
				t.Errorf("the helpers were asked for %q", did)
			}
			b.ok(b.allocate("B", "nvme1n1"))
		})
	}
	for name, crash := range map[string]bool{"": false, ", and we crash before that is noted": true} {
		t.Run("erased at the start"+name, func(t *testing.T) {
			play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
				b.used("A", "nvme1n1")
				clock.Pass(time.Second)
				b.ok(b.allocate("B", "nvme1n1"))
				if crash {
					b.crash()
				}
				b.ok(b.start("nvme1n1"))
				b.want("nvme1n1", "reset nvme1n1 nvme-controller, erase nvme1n1 zero", "")
			})
		})
	}
}

// TestNextPodComesWhileClearing: what is due for it is not over when the clearing is.
func TestNextPodComesWhileClearing(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.used("A", "nvme1n1")
		b.meanwhile("holders", func(context.Context) error { // of the clearing
			b.meanwhile("holders", nil)
			b.ok(b.allocate("B", "nvme1n1"))
			return nil
		})
		b.free("nvme1n1")
		synctest.Wait()
		b.ok(b.start("nvme1n1"))
		b.want("nvme1n1", "reset nvme1n1 nvme-controller, erase nvme1n1 zero", "")
	})
}

func TestForceDeletedPod(t *testing.T) {
	for device, care := range map[string]turnover.Care{"nvme1n1": zeroAfter, "widget0": nothing} {
		for _, crash := range []bool{false, true} {
			play(t, disk(1, 1, 7)+widgets, care, func(b *bench) {
				b.used("A", device)
				b.opens(device, "A")
				b.free(device) // its container still runs
				if crash {
					clock.Pass(time.Second)
					b.crash()
				}
				clock.Pass(time.Minute)
				b.want(device, "", "its pod is gone, but pod A has it open (dd, pid 7)")
				b.refused(b.allocate("B", device), "its pod is gone")
				b.opens(device)
				clock.Pass(time.Minute)
				if s := b.status(device); !s.Healthy {
					t.Errorf("%s is Unhealthy: %s", device, s.Reason)
				}
				if device == "nvme1n1" && b.content[device] != "" {
					t.Error("it is not erased")
				}
			})
		}
	}
}

func TestKubeletGivesAwayWhatAForceDeletedPodHas(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.used("A", "nvme1n1")
		b.opens("nvme1n1", "A")
		b.ok(b.allocate("B", "nvme1n1"))
		b.refused(b.start("nvme1n1"), "pod A has it open")
		b.want("nvme1n1", "", "")
		b.opens("nvme1n1")
		b.ok(b.start("nvme1n1"))
		b.want("nvme1n1", "reset nvme1n1 nvme-controller, erase nvme1n1 zero", "")
	})
	play(t, widgets, nothing, func(b *bench) { // a device that the host may have open, but A may not
		b.used("A", "widget0")
		b.opens("widget0", "", "A")
		b.ok(b.allocate("B", "widget0"))
		b.refused(b.start("widget0"), "pod A has it open")
	})
}

// TestCrash: we are killed at every step between two pods, and begin anew with what is on disk then.
func TestCrash(t *testing.T) {
	steps := []struct {
		name string
		do   func(b *bench)
	}{
		{"allocated", func(b *bench) { clock.Pass(time.Second); b.ok(b.allocate("A", "nvme1n1")) }},
		{"started", func(b *bench) { b.ok(b.start("nvme1n1")) }},
		{"written to", func(b *bench) { b.write("nvme1n1", "A's ext4") }},
		{"freed", func(b *bench) {
			b.meanwhile("erase", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			b.free("nvme1n1")
		}},
		{"being erased", func(b *bench) { synctest.Wait() }},
	}
	for crash := range steps {
		t.Run(steps[crash].name, func(t *testing.T) {
			play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
				for i, step := range steps {
					step.do(b)
					if i == crash {
						b.crash()
					}
				}
				b.free("nvme1n1") // as the kubelet says again and again
				b.status("nvme1n1")
				b.did()
				b.want("nvme1n1", "", cleared)
				b.refused(b.allocate("B", "nvme1n1"), cleared)
				b.meanwhile("erase", nil)
				b.crash()
				b.free("nvme1n1")
				b.want("nvme1n1", "erase nvme1n1 zero", "")
				b.ok(b.allocate("B", "nvme1n1"))
				b.ok(b.start("nvme1n1"))
				if b.content["nvme1n1"] != "" {
					t.Errorf("the next pod sees %s", b.content["nvme1n1"])
				}
			})
		})
	}
}

// TestPodThatGoesWhileWeAreAway: a container was started a moment before we were killed, and its pod is gone, also from
// the kubelet's checkpoint, when we are back.
func TestPodThatGoesWhileWeAreAway(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
		clock.Pass(time.Second)
		b.ok(b.allocate("A", "nvme1n1"))
		b.ok(b.start("nvme1n1"))
		b.write("nvme1n1", "A's data that no sample hits")
		b.owners = make(map[string][]string)
		b.crash()
		b.refused(b.allocate("B", "nvme1n1"), "left by the last pod")
		b.want("nvme1n1", "erase nvme1n1 zero", "")
	})
}

func TestClearingThatFails(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
		b.used("A", "nvme1n1")
		b.fails("erase", errors.New("media error"))
		b.free("nvme1n1")
		b.want("nvme1n1", "erase nvme1n1 zero", "zero nvme-eui.11: media error")
		b.refused(b.allocate("B", "nvme1n1"), "media error")
		for _, wait := range []time.Duration{10, 20, 40, 80, 160, 320, 600, 600} {
			clock.Pass(wait*time.Second - time.Millisecond)
			b.want("nvme1n1", "", "zero nvme-eui.11: media error")
			clock.Pass(time.Millisecond)
			b.want("nvme1n1", "erase nvme1n1 zero", "zero nvme-eui.11: media error")
		}
		b.crash()
		b.want("nvme1n1", "erase nvme1n1 zero", "zero nvme-eui.11: media error")
		b.fails("erase", nil)
		clock.Pass(10 * time.Minute)
		b.want("nvme1n1", "erase nvme1n1 zero", "")
	})
}

func TestStopWhileClearing(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
		b.used("A", "nvme1n1")
		b.meanwhile("erase", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		b.free("nvme1n1")
		synctest.Wait()
		b.stop() // which ends it
		b.did()
		b.meanwhile("erase", func(ctx context.Context) error { clock.Pass(time.Minute); return nil })
		b.begin()
		b.want("nvme1n1", "erase nvme1n1 zero", cleared) // and not that it has failed
		clock.Pass(time.Hour)
		b.want("nvme1n1", "", "")
	})
}

func TestNothingIsClearedTwice(t *testing.T) {
	play(t, disk(1, 1, 7)+disk(2, 1, 8), zeroAfter, func(b *bench) {
		for range 20 {
			b.used("A", "nvme1n1")
			b.used("A", "nvme2n1")
			b.free("nvme1n1")
			b.free("nvme2n1")
			b.status("nvme1n1")
			if did := b.did(); strings.Count(did, "erase") != 2 {
				t.Fatalf("the helpers were asked for %q", did)
			}
		}
	})
}

// TestBothNamespacesAreReleased: a reset of one hits the other, which is being cleared at the same time.
func TestBothNamespacesAreReleased(t *testing.T) {
	play(t, disk(1, 2, 7)+widgets, controllers, func(b *bench) {
		b.ok(b.allocate("A", "nvme1n1", "nvme1n2"))
		b.inventory.Worked(idOf("nvme1n1"), inventory.Outcome{Started: true})
		b.inventory.Worked(idOf("nvme1n2"), inventory.Outcome{Started: true})
		b.owners = make(map[string][]string)
		clock.Pass(time.Millisecond)
		b.inventory.Confirm(time.Now(), map[string]inventory.Holding{idOf("nvme1n1"): inventory.Free, idOf("nvme1n2"): inventory.Free})
		clock.Pass(time.Minute)
		b.status("nvme1n1")
		did := b.did()
		if !strings.Contains(did, "reset nvme1n1 nvme-controller with nvme1n2") || !strings.Contains(did, "reset nvme1n2 nvme-controller with nvme1n1") {
			t.Errorf("the helpers were asked for %q", did)
		}
		b.want("nvme1n1", "", "")
		b.want("nvme1n2", "", "")
	})
}

func TestReloadChangesTheCare(t *testing.T) {
	reload := func(b *bench, care turnover.Care) {
		b.set(care)
		<-b.inventory.SetRules(b.rules(), nil)
	}
	play(t, disk(1, 1, 7), nothing, func(b *bench) { // to be erased from now on
		b.used("A", "nvme1n1")
		reload(b, zeroAfter)
		b.free("nvme1n1")
		b.want("nvme1n1", "erase nvme1n1 zero", "")
	})
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) { // not any more, when the next pod has it already
		b.used("A", "nvme1n1")
		b.ok(b.allocate("B", "nvme1n1"))
		reload(b, nothing)
		b.refused(b.start("nvme1n1"), "A's ext4 is on it")
	})
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) { // the rules say it already, the care not yet
		b.used("A", "nvme1n1")
		b.set(nothing)
		b.free("nvme1n1")
		b.want("nvme1n1", "", cleared)
		reload(b, zeroAfter)
		b.want("nvme1n1", "erase nvme1n1 zero", "")
	})
}

func TestLeftoverIsOver(t *testing.T) {
	for _, c := range []struct {
		name  string
		story func(b *bench)
	}{
		{"when the disk was empty while nobody had it", func(b *bench) {
			b.write("nvme1n1", "")
			b.inventory.LookAgain(idOf("nvme1n1"))
		}},
		{"when it has left the offer", func(b *bench) {
			b.machine.Unplug("/sys/devices/pci0000:00/0000:00:01.0")
			synctest.Wait()
			b.free("nvme1n1")
			synctest.Wait()
			b.machine.Apply(mounts + disk(1, 1, 7))
		}},
		{"when another disk has appeared in its place", func(b *bench) { b.machine.Apply(mounts + disk(1, 1, 8)) }},
		{"when another has appeared while we were away", func(b *bench) {
			clock.Pass(time.Second)
			b.stop()
			b.machine.Apply(mounts + disk(1, 1, 8))
			b.begin()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
				b.used("A", "nvme1n1")
				b.free("nvme1n1")
				if s := b.status("nvme1n1"); !s.Leftover || !s.Erasable {
					t.Fatalf("%+v", s)
				}
				c.story(b)
				synctest.Wait()
				b.write("nvme1n1", "somebody's ext4")
				b.inventory.LookAgain(idOf("nvme1n1"))
				b.want("nvme1n1", "", adoptable("somebody's"))
				clock.Pass(time.Hour)
				b.want("nvme1n1", "", adoptable("somebody's"))
			})
		})
	}
}

func TestByHand(t *testing.T) {
	ctx := context.Background()
	play(t, disk(1, 1, 7)+disk(2, 2, 8)+widgets, zeroAfter, func(b *bench) {
		b.refused(b.turnover.ByHand(ctx, "nothing", ""), "no such device")
		b.ok(b.turnover.ByHand(ctx, idOf("nvme1n1"), ""))
		b.want("nvme1n1", "reset nvme1n1 nvme-controller", "")
		b.refused(b.turnover.ByHand(ctx, idOf("nvme2n1"), ""), "no method of its class fits it as it stands")
		b.refused(b.turnover.ByHand(ctx, idOf("widget0"), "zero"), "devices of this kind know nothing of the sort")
		b.want("widget0", "", "")
		b.used("A", "nvme1n1")
		b.refused(b.turnover.ByHand(ctx, idOf("nvme1n1"), "zero"), "a pod holds it")
		b.opens("nvme2n1", "")
		b.refused(b.turnover.ByHand(ctx, idOf("nvme2n1"), "zero"), "this host has it open")
		b.opens("nvme2n1")
		b.write("nvme2n1", "somebody's ext4")
		b.ok(b.turnover.ByHand(ctx, idOf("nvme2n1"), "zero")) // the operator says so
		b.want("nvme2n1", "erase nvme2n1 zero", "")
	})
}

func TestByHandMends(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
		b.used("A", "nvme1n1")
		b.fails("erase", errors.New("media error"))
		b.free("nvme1n1")
		b.want("nvme1n1", "erase nvme1n1 zero", "zero nvme-eui.11: media error")
		b.ok(b.turnover.ByHand(context.Background(), idOf("nvme1n1"), "")) // that alone is not enough
		b.want("nvme1n1", "reset nvme1n1 nvme-controller", "zero nvme-eui.11: media error")
		b.meanwhile("erase", func(context.Context) error { clock.Pass(5 * time.Second); return nil })
		b.ok(b.turnover.ByHand(context.Background(), idOf("nvme1n1"), "discard"))
		b.want("nvme1n1", "erase nvme1n1 discard", "")
		clock.Pass(time.Hour)
		b.want("nvme1n1", "", "")
	})
}

// TestStartDuringWorkByHand: the kubelet's pod waits, and gets the device as it was to be.
func TestStartDuringWorkByHand(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.meanwhile("reset", func(context.Context) error {
			b.meanwhile("reset", nil)
			clock.Pass(10 * time.Second)
			return nil
		})
		byHand := make(chan error)
		go func() { byHand <- b.turnover.ByHand(context.Background(), idOf("nvme1n1"), "") }()
		b.want("nvme1n1", "reset nvme1n1 nvme-controller", "being reset by hand")
		b.refused(b.allocate("A", "nvme1n1"), "being reset by hand")
		b.inventory.Allocated(map[string][]string{idOf("nvme1n1"): {idOf("nvme1n1")}}) // or it came a moment before
		b.ok(b.start("nvme1n1"))
		b.ok(<-byHand)
		b.want("nvme1n1", "reset nvme1n1 nvme-controller", "")
	})
}
