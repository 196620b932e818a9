// SPDX-License-Identifier: Apache-2.0

package turnover_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/turnover"
	"github.com/metalplug/metalplug/integration/clock"
)

var (
	nothing      = turnover.Care{Method: turnover.None, Scrub: turnover.None}
	resetOnly    = turnover.Care{Method: turnover.Auto, Scrub: turnover.None, AtStart: true}
	zeroAtStart  = turnover.Care{Method: turnover.Auto, Scrub: "zero", AtStart: true}
	zeroAfter    = turnover.Care{Method: turnover.None, Scrub: "zero", AtRelease: true, Timeout: time.Hour}
	resetAfter   = turnover.Care{Method: turnover.Auto, Scrub: turnover.None, AtRelease: true}
	always       = turnover.Care{Method: turnover.Auto, Scrub: "zero", AtStart: true, AtRelease: true, Timeout: time.Hour}
	controller   = turnover.Care{Method: "nvme-controller", Scrub: turnover.None, AtStart: true}
	controllers  = turnover.Care{Method: "nvme-controller", Scrub: turnover.None, AtRelease: true, Timeout: time.Hour}
	sharedByHost = turnover.Care{Method: turnover.None, Scrub: turnover.None, Open: true}
)

// play runs a test in a bubble, where time passes only while everybody waits. Devices are to be initialised by a unit if
// one is named.
func play(t *testing.T, text string, care turnover.Care, story func(b *bench), init ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, text, care, init...)
		synctest.Wait()
		story(b)
	})
}

func TestWhatPrecedesTheFirstStart(t *testing.T) {
	for _, c := range []struct {
		name, device string
		care         turnover.Care
		first, again string // what the helpers are asked for
	}{
		{"nothing", "nvme1n1", nothing, "", ""},
		{"a reset", "nvme1n1", resetOnly, "reset nvme1n1 nvme-controller", "reset nvme1n1 nvme-controller"},
		{"a reset and an erasure", "nvme1n1", zeroAtStart, "reset nvme1n1 nvme-controller", "reset nvme1n1 nvme-controller"},
		{"only after a release", "nvme1n1", zeroAfter, "", ""},
		{"of a widget", "widget0", resetOnly, "", ""},
		{"of a VFIO group", "120", resetOnly, "reset 120 vfio", "reset 120 vfio"},
		{"of a disk that the host may use", "nvme1n1", sharedByHost, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, disk(1, 1, 7)+widgets+group, c.care, func(b *bench) {
				b.ok(b.allocate("A", c.device))
				b.ok(b.start(c.device)) // at once: no snapshot knows of the pod yet
				b.want(c.device, c.first, "")
				b.write(c.device, "ext4")
				for range 2 { // as often as the kubelet likes
					b.ok(b.start(c.device))
					b.want(c.device, c.again, "")
				}
				if s := b.status(c.device); s.Due || !s.Dirty || !s.Held || s.Failure != "" {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// TestVFIOGroupOfAVirtualMachine: only one process can open a group, so it matters that it is the host's.
func TestVFIOGroupOfAVirtualMachine(t *testing.T) {
	play(t, group, resetOnly, func(b *bench) {
		b.ok(b.allocate("A", "120"))
		b.opens("120", "")
		b.refused(b.start("120"), "this host has it open")
		b.opens("120")
		b.ok(b.start("120"))
		b.want("120", "reset 120 vfio", "")
	})
}

func TestAllDevicesAtOnce(t *testing.T) {
	play(t, disk(1, 1, 7)+disk(2, 1, 8), zeroAtStart, func(b *bench) {
		both := make(chan struct{})
		entered := make(chan struct{}, 2)
		b.meanwhile("reset", func(context.Context) error {
			entered <- struct{}{}
			<-both
			return nil
		})
		go func() { <-entered; <-entered; close(both) }() // neither ends before both have begun
		b.ok(b.allocate("A", "nvme1n1", "nvme2n1"))
		b.ok(b.start("nvme1n1", "nvme2n1"))
	})
}

func TestBusyIsRefused(t *testing.T) {
	for _, c := range []struct {
		name, device string
		open         []string
		want         string // empty: it is not refused
	}{
		{"by another pod", "nvme1n1", []string{"B"}, "device busy: pod B has it open (dd, pid 7)"},
		{"by the host", "nvme1n1", []string{""}, "device busy: this host has it open (dd, pid 7)"},
		{"by its own pod, of which nothing was started", "nvme1n1", []string{"A"}, "device busy: pod A has it open (dd, pid 7)"},
		{"a node that the host may watch", "widget0", []string{"", "monitor"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, disk(1, 1, 7)+widgets, resetOnly, func(b *bench) {
				b.ok(b.allocate("A", c.device))
				b.opens(c.device, c.open...)
				err := b.start(c.device)
				if c.want == "" {
					b.ok(err)
					return
				}
				b.refused(err, idOf(c.device)+": "+c.want)
				if !errors.Is(err, turnover.ErrBusy) {
					t.Errorf("%v is not %v", err, turnover.ErrBusy)
				}
				b.want(c.device, "", "") // as it was
				b.opens(c.device)
				b.ok(b.start(c.device))
			})
		})
	}
}

func TestHostThatPassesByDoesNotCount(t *testing.T) {
	play(t, disk(1, 1, 7), nothing, func(b *bench) {
		b.ok(b.allocate("A", "nvme1n1"))
		b.opens("nvme1n1", "")
		time.AfterFunc(500*time.Millisecond, func() { b.opens("nvme1n1") })
		b.ok(b.start("nvme1n1"))
	})
}

func TestSidecarKeepsItsDevice(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.ok(b.allocate("A", "nvme1n1"))
		b.ok(b.start("nvme1n1"))
		b.did()
		b.opens("nvme1n1", "A")
		b.ok(b.start("nvme1n1"))
		b.want("nvme1n1", "", "")
	})
}

func TestFailureKeepsADeviceUntilItIsMended(t *testing.T) {
	broken := errors.New("the controller is dead")
	for what, want := range map[string]string{
		"reset":   "nvme-controller, zero nvme-eui.11: the controller is dead",
		"erase":   "nvme-controller, zero nvme-eui.11: the controller is dead",
		"holders": "who has nvme-eui.11 open cannot be told: the controller is dead",
	} {
		t.Run(what, func(t *testing.T) {
			play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
				b.left("nvme1n1")
				b.ok(b.allocate("A", "nvme1n1"))
				b.fails(what, broken)
				b.refused(b.start("nvme1n1"), want)
				b.did()
				b.want("nvme1n1", "", want)
				clock.Pass(time.Second) // until it is on disk
				b.crash()               // which does not mend it
				b.want("nvme1n1", "", want)
				b.refused(b.start("nvme1n1"), want)
				b.fails(what, nil)
				b.did()
				b.ok(b.start("nvme1n1"))
				b.want("nvme1n1", "reset nvme1n1 nvme-controller, erase nvme1n1 zero", "")
			})
		})
	}
}

func TestDeadline(t *testing.T) {
	for _, c := range []struct {
		timeout, want time.Duration
	}{{20 * time.Second, 24 * time.Second}, {time.Hour, 29 * time.Second}} {
		care := zeroAtStart
		care.Timeout = c.timeout
		play(t, disk(1, 1, 7), care, func(b *bench) {
			b.left("nvme1n1")
			b.meanwhile("erase", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			b.ok(b.allocate("A", "nvme1n1"))
			began := time.Now()
			b.refused(b.start("nvme1n1"), "deadline exceeded")
			if took := time.Since(began); took != c.want {
				t.Errorf("it took %v, want %v", took, c.want)
			}
			b.did()
			b.want("nvme1n1", "", "nvme-controller, zero nvme-eui.11: context deadline exceeded")
		})
	}
}

func TestKubeletThatGoesAwayDoesNotSpoilADevice(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.left("nvme1n1")
		ctx, cancel := context.WithCancel(context.Background())
		b.meanwhile("erase", func(ctx context.Context) error { cancel(); return ctx.Err() })
		b.ok(b.allocate("A", "nvme1n1"))
		s := b.status("nvme1n1")
		b.ok(b.turnover.Start(ctx, diskResource, []*inventory.Status{s}))
		b.want("nvme1n1", "reset nvme1n1 nvme-controller, erase nvme1n1 zero", "")
	})
}

func TestTwoStartsAtOnce(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.left("nvme1n1")
		b.ok(b.allocate("A", "nvme1n1"))
		under := 0
		b.meanwhile("reset", func(context.Context) error {
			if under++; under > 1 {
				t.Error("two at a time")
			}
			clock.Pass(time.Second)
			under--
			return nil
		})
		errs := make(chan error)
		for range 2 {
			go func() { errs <- b.start("nvme1n1") }()
		}
		b.ok(errors.Join(<-errs, <-errs))
		b.want("nvme1n1", "reset nvme1n1 nvme-controller, erase nvme1n1 zero, reset nvme1n1 nvme-controller", "")
	})
}

// TestPodGoesOnWithItsDisk after it has dropped off the bus: its containers start again with what is on it. Since it may
// have been elsewhere, it is not erased for the next pod, and not given to one.
func TestPodGoesOnWithItsDisk(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("a start of ours after that: %t", restarted), func(t *testing.T) {
			both := zeroAtStart
			both.AtRelease = true
			play(t, disk(1, 1, 7), both, func(b *bench) {
				b.used("A", "nvme1n1")
				b.write("nvme1n1", "A's ext4")
				b.machine.Unplug("/sys/devices/pci0000:00/0000:00:01.0")
				clock.Pass(time.Minute)
				b.machine.Apply(mounts + disk(1, 1, 8))
				clock.Pass(time.Second)
				if restarted {
					b.stop()
					b.begin()
				}
				b.did()
				b.ok(b.start("nvme1n1"))
				b.want("nvme1n1", "reset nvme1n1 nvme-controller", "")
				b.free("nvme1n1")
				clock.Pass(time.Hour)
				if did := b.did(); strings.Contains(did, "erase") || b.content["nvme1n1"] == "" {
					t.Errorf("when the pod is gone: %q; %q is on the disk", did, b.content["nvme1n1"])
				}
				if s := b.status("nvme1n1"); s.Healthy && s.Resource != "" {
					t.Error("it is offered")
				}
			})
		})
	}
}

func TestForeignDataIsNeverErased(t *testing.T) {
	for _, c := range []struct {
		name  string
		care  turnover.Care
		story func(b *bench)
	}{
		{"written between allocation and start", zeroAtStart, func(b *bench) {
			b.ok(b.allocate("A", "nvme1n1"))
			b.write("nvme1n1", "admin's ext4")
		}},
		{"written while it was only allocated, over a crash", zeroAtStart, func(b *bench) {
			b.ok(b.allocate("A", "nvme1n1"))
			clock.Pass(time.Minute)
			b.write("nvme1n1", "admin's ext4")
			b.crash()
		}},
		{"written between allocation and start, without an erasure", nothing, func(b *bench) {
			b.ok(b.allocate("A", "nvme1n1"))
			b.write("nvme1n1", "admin's ext4")
		}},
		{"written over what a pod has left, between allocation and start", zeroAtStart, func(b *bench) {
			b.used("A", "nvme1n1")
			b.write("nvme1n1", "A's ext4")
			b.free("nvme1n1")
			synctest.Wait()
			b.ok(b.allocate("B", "nvme1n1"))
			b.write("nvme1n1", "admin's ext4")
		}},
		{"written after an erasure whose start failed otherwise", with(zeroAtStart, startUnit, ""), func(b *bench) {
			b.used("A", "nvme1n1")
			b.write("nvme1n1", "A's ext4")
			b.free("nvme1n1")
			synctest.Wait()
			b.ok(b.allocate("B", "nvme1n1"))
			b.fails(startUnit, errUnit)
			b.refused(b.start("nvme1n1"), "run it: failed")
			b.fails(startUnit, nil)
			b.write("nvme1n1", "admin's ext4")
		}},
		{"written after an erasure of what nobody has read, whose start failed otherwise", with(zeroAtStart, startUnit, ""), func(b *bench) {
			b.used("A", "nvme1n1")
			b.ok(b.allocate("B", "nvme1n1")) // without a look in between
			b.fails(startUnit, errUnit)
			b.refused(b.start("nvme1n1"), "run it: failed")
			b.fails(startUnit, nil)
			b.write("nvme1n1", "admin's ext4")
		}},
		{"written after a start that failed before anything was done", zeroAtStart, func(b *bench) {
			b.used("A", "nvme1n1")
			b.write("nvme1n1", "A's ext4")
			b.free("nvme1n1")
			synctest.Wait()
			b.ok(b.allocate("B", "nvme1n1"))
			b.fails("holders", errors.New("no answer"))
			b.refused(b.start("nvme1n1"), "no answer")
			b.fails("holders", nil)
			b.write("nvme1n1", "admin's ext4")
		}},
		{"of another disk of that name, during a restart", nothing, func(b *bench) {
			as := func(serial string, appearance int) {
				b.machine.Apply(mounts + strings.Replace(disk(1, 1, appearance), "A: nsid", "A: device/serial="+serial+"\nA: nsid", 1))
				synctest.Wait()
			}
			as("S1", 7)
			b.ok(b.allocate("A", "nvme1n1"))
			b.ok(b.start("nvme1n1"))
			b.write("nvme1n1", "somebody's ext4")
			as("S2", 8)
			synctest.Wait()
		}},
		{"swapped and not yet noticed", zeroAtStart, func(b *bench) {
			b.ok(b.allocate("A", "nvme1n1"))
			b.ok(b.start("nvme1n1"))
			b.write("nvme1n1", "A's ext4")
			b.free("nvme1n1")
			synctest.Wait()
			b.ok(b.allocate("B", "nvme1n1"))
			b.write("nvme1n1", "somebody's ext4")
			b.machine.Silently(mounts + disk(1, 1, 8))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, disk(1, 1, 7), c.care, func(b *bench) {
				c.story(b)
				b.did()
				if err := b.start("nvme1n1"); !errors.Is(err, turnover.ErrUnfit) {
					t.Errorf("start: %v, want %v", err, turnover.ErrUnfit)
				}
				if did := b.did(); strings.Contains(did, "erase") {
					t.Errorf("the helpers were asked for %q", did)
				}
				b.free("nvme1n1")
				clock.Pass(time.Hour)
				if b.content["nvme1n1"] == "" || strings.Contains(b.did(), "erase") {
					t.Error("it is erased when the pod is gone")
				}
				if s := b.status("nvme1n1"); s.Healthy && s.Resource != "" {
					t.Error("it is offered")
				}
			})
		})
	}
}

func TestOwnersUnknown(t *testing.T) {
	play(t, disk(1, 1, 7), nothing, func(b *bench) {
		b.ok(b.allocate("A", "nvme1n1"))
		b.fails("owners", errors.New("no checkpoint"))
		b.refused(b.start("nvme1n1"), "whose devices are cannot be told: no checkpoint")
		b.want("nvme1n1", "", "")
	})
}

func TestDeviceThatHasGone(t *testing.T) {
	play(t, disk(1, 1, 7), nothing, func(b *bench) {
		b.ok(b.allocate("A", "nvme1n1"))
		synctest.Wait()
		b.machine.Unplug("/sys/devices/pci0000:00/0000:00:01.0")
		synctest.Wait()
		if err := b.start("nvme1n1"); !errors.Is(err, device.ErrGone) {
			t.Errorf("%v, want %v", err, device.ErrGone)
		}
	})
}

// TestNoFlap: a device that drops off the bus during its own reset is what it was for the kubelet.
func TestNoFlap(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.meanwhile("reset", func(context.Context) error {
			b.machine.SetAttr("/sys/devices/pci0000:00/0000:00:01.0/nvme/nvme1", "state", "resetting")
			clock.Pass(time.Second)
			b.machine.Unplug("/sys/devices/pci0000:00/0000:00:01.0/nvme")
			clock.Pass(time.Second)
			b.want("nvme1n1", "reset nvme1n1 nvme-controller", "")
			if s := b.status("nvme1n1"); len(s.Allocation.Nodes) != 1 || !s.Present {
				t.Errorf("a container would be given %v", s.Allocation)
			}
			b.machine.Apply(b.text)
			return nil
		})
		b.ok(b.allocate("A", "nvme1n1"))
		listed := b.listed()
		for range 6 { // more often than a device may be sick
			b.ok(b.start("nvme1n1"))
			b.did()
			b.want("nvme1n1", "", "")
		}
		if now := b.listed(); now != listed {
			t.Errorf("the kubelet was told %d times", now-listed)
		}
	})
}

func (b *bench) listed() uint64 {
	synctest.Wait()
	snapshot, _ := b.inventory.Snapshot()
	return snapshot.Offer(diskResource).Listed
}

func TestDeviceThatDoesNotComeBackIsUnhealthy(t *testing.T) {
	play(t, disk(1, 1, 7), resetOnly, func(b *bench) {
		b.meanwhile("reset", func(context.Context) error {
			b.machine.Unplug("/sys/devices/pci0000:00/0000:00:01.0/nvme")
			synctest.Wait()
			return nil
		})
		b.ok(b.allocate("A", "nvme1n1"))
		if err := b.start("nvme1n1"); err == nil { // the helper looks for it, too: here it is not there
			t.Error("it is started")
		}
		b.did()
		b.want("nvme1n1", "", "gone")
	})
}

// TestAccountThatCannotBeKept: with the state directory full no container starts with a disk. It could be forgotten that the
// disk has to be erased, or that its evidence has ended.
func TestAccountThatCannotBeKept(t *testing.T) {
	for _, care := range []turnover.Care{zeroAtStart, zeroAfter, resetOnly} {
		play(t, disk(1, 1, 7), care, func(b *bench) {
			b.ok(b.allocate("A", "nvme1n1"))
			clock.Pass(time.Minute)
			b.ok(os.MkdirAll(b.state+"/state.json.new/full", 0o755)) // where it would be written
			err := b.start("nvme1n1")
			b.refused(err, "what a container leaves could be forgotten")
			b.ok(os.RemoveAll(b.state + "/state.json.new"))
			b.ok(b.start("nvme1n1"))
		})
	}
}

func TestNamespacesOfOneController(t *testing.T) {
	play(t, disk(1, 2, 7), controller, func(b *bench) {
		b.ok(b.allocate("A", "nvme1n1"))
		b.ok(b.start("nvme1n1"))
		b.want("nvme1n1", "reset nvme1n1 nvme-controller with nvme1n2", "")
		b.ok(b.allocate("B", "nvme1n2"))
		b.refused(b.start("nvme1n2"), "it would hit nvme-eui.11, which a pod holds")
		b.want("nvme1n2", "", "")
	})
	play(t, disk(1, 2, 7), resetOnly, func(b *bench) { // the right method for it is none
		b.ok(b.allocate("A", "nvme1n1"))
		b.ok(b.start("nvme1n1"))
		b.want("nvme1n1", "", "")
	})
}
