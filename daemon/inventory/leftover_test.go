// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/udev/udevtest"
)

// nobodyAnswers what is on a disk.
const nobodyAnswers = "?"

// probed lets disks be probed as if that was read, unless a pod holds them; a claim only shows where the disk would be
// offered whatever is on it.
func probed(reading *device.Reading) func(*inventory.Options) {
	return func(o *inventory.Options) {
		o.Host.Touch.Probe = func(_ context.Context, t device.Target, held bool) (device.Reading, error) {
			switch {
			case reading.Content == nobodyAnswers:
				return device.Reading{}, fmt.Errorf("%w: late", device.ErrUnanswered)
			case held:
				return device.Reading{}, nil
			case reading.Claimed && t.Offered:
				return *reading, fmt.Errorf("%w: cannot be opened exclusively", device.ErrInUse)
			}
			return device.Reading{Content: reading.Content, Fingerprint: reading.Fingerprint}, nil
		}
	}
}

// idle brings a disk of "when = start" to where its pod is gone and has left something that is erased for the next.
func idle(t *testing.T, r *running, reading *device.Reading, left device.Reading) {
	t.Helper()
	r.Allocated(map[string][]string{diskID: {diskID}}, "")
	r.did(diskID, inventory.Outcome{Event: lease.Start, Tenants: []string{"A"}})
	synctest.Wait()
	*reading = left
	clock.Pass(time.Millisecond)
	r.Confirm(time.Now(), map[string]inventory.Holding{diskID: inventory.Free})
	r.did(diskID, inventory.Outcome{Event: lease.Cleared})
	synctest.Wait()
	if a := r.account(diskID); !a.Leftover || !a.Erasable {
		t.Fatalf("%+v", a)
	}
	clock.Pass(time.Second) // on disk
}

// TestClaimEndsALeftover: an idle disk becomes part of a ZFS pool, of which neither mounts nor holders tell. The pool is
// not the pod's, also when it is exported again.
func TestClaimEndsALeftover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reading device.Reading
		r := start(t, udevtest.New(t, diskOf(7)), "", tenants(false, true), probed(&reading))
		idle(t, r, &reading, device.Reading{Content: "ext4"})
		for _, claimed := range []bool{true, false} {
			reading = device.Reading{Content: "zfs_member", Claimed: claimed}
			r.LookAgain(diskID)
			synctest.Wait()
			if a := r.account(diskID); a.Leftover || a.Erasable || a.Reason == "" {
				t.Errorf("claimed: %t: %+v", claimed, a)
			}
		}
	})
}

// TestClaimWhileItIsNotCleared may be that of a process of the pod.
func TestClaimWhileItIsNotCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reading := device.Reading{}
		r := start(t, udevtest.New(t, diskOf(7)), "", tenants(true, false), probed(&reading))
		released(t, r)
		reading = device.Reading{Content: "ext4", Claimed: true}
		r.LookAgain(diskID)
		synctest.Wait()
		if a := r.account(diskID); !a.Leftover || a.Erasable {
			t.Errorf("%+v", a)
		}
		reading.Claimed = false
		r.LookAgain(diskID)
		synctest.Wait()
		if a := r.account(diskID); !a.Leftover || !a.Erasable {
			t.Errorf("%+v", a)
		}
	})
}

// blankIn is the recording of the disk in one of its appearances in a boot.
func blankIn(boot string, appearance int) string {
	return "F: /proc/sys/kernel/random/boot_id=" + boot + "\n\n" + diskOf(appearance)
}

// inBoot is the same with a file system that udev has found.
func inBoot(boot string, appearance int) string {
	return strings.Replace(blankIn(boot, appearance), "E: DEVTYPE=disk\n", "E: DEVTYPE=disk\nE: ID_FS_TYPE=ext4\n", 1)
}

// again starts the daemon once more.
func again(t *testing.T, r *running, state, machine string, reading *device.Reading) *running {
	t.Helper()
	r.stop()
	r.stop = func() {}
	next := start(t, udevtest.New(t, machine), state, tenants(false, true), probed(reading))
	synctest.Wait()
	return next
}

// TestUsedElsewhereMeanwhile: what is on a disk that was away, or on a node that ran without us for a while, is erased
// if it is what its pod has left there, and is somebody's if it is not, or if nobody knows.
func TestUsedElsewhereMeanwhile(t *testing.T) {
	pods, others := device.Reading{Content: "ext4", Fingerprint: "1"}, device.Reading{Content: "crypto_LUKS", Fingerprint: "2"}
	for _, c := range []struct {
		name   string
		left   device.Reading
		next   string // the machine of the next start
		read   device.Reading
		erased bool
	}{
		{"not touched, another boot", pods, inBoot("5", 3), pods, true},
		{"not touched, the same boot", pods, inBoot("1", 7), pods, true},
		{"used elsewhere, another boot", pods, inBoot("5", 3), others, false},
		{"used without us, the same boot", pods, inBoot("1", 7), others, false},
		{"not known, another boot", device.Reading{Content: "ext4"}, inBoot("5", 3), device.Reading{Content: "ext4"}, false},
		{"not known, the same boot", device.Reading{Content: "ext4"}, inBoot("1", 7), device.Reading{Content: "ext4"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reading device.Reading
				state := t.TempDir()
				r := start(t, udevtest.New(t, blankIn("1", 7)), state, tenants(false, true), probed(&reading))
				idle(t, r, &reading, c.left)
				reading = c.read
				r = again(t, r, state, c.next, &reading)
				if a := r.account(diskID); a.Erasable != c.erased || a.Leftover != c.erased {
					t.Errorf("%+v", a)
				}
				reading = pods // whoever copies that back has not made it the pod's again
				r.LookAgain(diskID)
				synctest.Wait()
				if a := r.account(diskID); a.Erasable != c.erased {
					t.Errorf("at the next look: %+v", a)
				}
			})
		})
	}
}

// TestWrittenByOthers: also while we look on, and while nobody answers after a start it is not known yet.
func TestWrittenByOthers(t *testing.T) {
	pods, others := device.Reading{Content: "ext4", Fingerprint: "1"}, device.Reading{Content: "crypto_LUKS", Fingerprint: "2"}
	bubble := func(name string, story func(t *testing.T, r *running, state string, reading *device.Reading)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reading device.Reading
				state := t.TempDir()
				r := start(t, udevtest.New(t, blankIn("1", 7)), state, tenants(false, true), probed(&reading))
				idle(t, r, &reading, pods)
				story(t, r, state, &reading)
			})
		})
	}
	want := func(t *testing.T, r *running, when string, erasable bool) {
		t.Helper()
		r.LookAgain(diskID)
		synctest.Wait()
		if a := r.account(diskID); a.Erasable != erasable {
			t.Errorf("%s: %+v", when, a)
		}
	}
	bubble("before our eyes", func(t *testing.T, r *running, _ string, reading *device.Reading) {
		want(t, r, "not yet", true)
		*reading = others
		want(t, r, "written", false)
	})
	bubble("by the next pod", func(t *testing.T, r *running, _ string, reading *device.Reading) {
		idle(t, r, reading, others)
		want(t, r, "written", true)
	})
	bubble("by an erasure of ours that fails", func(t *testing.T, r *running, _ string, reading *device.Reading) {
		r.begin(diskID, "")
		*reading = others
		r.LookAgain(diskID)
		synctest.Wait()
		r.did(diskID, inventory.Outcome{Event: lease.Fail, Failure: inventory.Failure{Err: errors.New("time is up")}})
		want(t, r, "failed", true)
	})
	bubble("by an erasure in which we end", func(t *testing.T, r *running, state string, reading *device.Reading) {
		r.begin(diskID, "")
		clock.Pass(time.Second) // on disk
		*reading = others
		r = again(t, r, state, inBoot("1", 7), reading)
		want(t, r, "half erased", true)
	})
	bubble("after work that did nothing", func(t *testing.T, r *running, _ string, reading *device.Reading) {
		r.begin(diskID, "")
		r.did(diskID, inventory.Outcome{})
		want(t, r, "refused", true)
		*reading = others
		want(t, r, "written", false)
	})
	bubble("without an answer at first", func(t *testing.T, r *running, state string, reading *device.Reading) {
		*reading = device.Reading{Content: nobodyAnswers}
		r = again(t, r, state, inBoot("5", 3), reading)
		want(t, r, "not known", false)
		r.Confirm(time.Now(), map[string]inventory.Holding{diskID: inventory.Free}) // it is Stale, so the daemon asks
		synctest.Wait()
		*reading = pods
		want(t, r, "known", true)
	})
}

// TestToBeErasedOutlastsABoot: nobody may have the disk before that.
func TestToBeErasedOutlastsABoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reading device.Reading
		state := t.TempDir()
		r := start(t, udevtest.New(t, blankIn("1", 7)), state, tenants(true, false), probed(&reading))
		released(t, r)
		reading = device.Reading{Content: "ext4", Fingerprint: "3"}
		r.stop()
		r.stop = func() {}
		r = start(t, udevtest.New(t, inBoot("5", 3)), state, tenants(true, false), probed(&reading))
		synctest.Wait()
		if a := r.account(diskID); !a.Erasable || !a.Uncleared {
			t.Errorf("%+v", a)
		}
	})
}

// TestAppearsAnew: a disk that appears again while we are at work on it may be another with the same identity, of which no
// pod of this node has had anything. Only the word of the helper makes it the one of before.
func TestAppearsAnew(t *testing.T) {
	const path = "/sys/devices/pci0000:00/0000:00:01.0"
	pods := device.Reading{Content: "ext4", Fingerprint: "1"}
	work := func(r *running) { r.begin(diskID, "") }
	vouch := func(r *running, appearance string) {
		r.Prepared(diskID, device.Prepared{Appearance: appearance})
		r.did(diskID, inventory.Outcome{Event: lease.Cleared})
	}
	for _, c := range []struct {
		name          string
		before, after func(r *running) // it comes anew
		leftover      bool
	}{
		{"proven after it was seen", work, func(r *running) { vouch(r, "8") }, true},
		{"proven before it is seen", func(r *running) { work(r); vouch(r, "8") }, func(*running) {}, true},
		{"another is proven, after it was seen", work, func(r *running) { vouch(r, "7") }, false},
		{"another is proven, before it is seen", func(r *running) { work(r); vouch(r, "7") }, func(*running) {}, false},
		{"nothing is proven", work, func(r *running) { r.did(diskID, inventory.Outcome{Event: lease.Cleared}) }, false},
		{"the work fails", work, func(r *running) {
			r.did(diskID, inventory.Outcome{Event: lease.Fail, Failure: inventory.Failure{Err: errors.New("it has not come back")}})
		}, false},
		{"a container starts, and nothing is proven", work, func(r *running) {
			r.did(diskID, inventory.Outcome{Event: lease.Start, Tenants: []string{"B"}})
		}, false},
		{"a container starts, and it is proven", work, func(r *running) {
			r.Prepared(diskID, device.Prepared{Appearance: "8"})
			r.did(diskID, inventory.Outcome{Event: lease.Start, Tenants: []string{"B"}})
		}, true},
		{"after that has failed", func(r *running) {
			r.begin(diskID, "")
			r.did(diskID, inventory.Outcome{Event: lease.Fail, Failure: inventory.Failure{Err: errors.New("it has not come back")}})
		}, func(*running) {}, false},
		{"long after", func(r *running) {
			r.begin(diskID, "")
			r.did(diskID, inventory.Outcome{Event: lease.Cleared})
			clock.Pass(time.Minute)
		}, func(*running) {}, false},
		{"by itself", func(*running) {}, func(*running) {}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reading device.Reading
				m := udevtest.New(t, blankIn("1", 7))
				r := start(t, m, "", tenants(false, true), probed(&reading))
				idle(t, r, &reading, pods)
				c.before(r)
				m.Unplug(path)
				m.Apply(blankIn("1", 8))
				synctest.Wait()
				c.after(r)
				synctest.Wait()
				if a := r.account(diskID); a.Leftover != c.leftover {
					t.Errorf("%+v", a)
				}
			})
		})
	}
}

// TestDiskseqThatCannotBeRead: while the kernel removes a disk, or makes it, its attributes are not all there. Nobody may
// have the disk then, and it is neither another nor the same.
func TestDiskseqThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reading device.Reading
		m := udevtest.New(t, blankIn("1", 7))
		r := start(t, m, "", tenants(false, true), probed(&reading))
		idle(t, r, &reading, device.Reading{Content: "ext4", Fingerprint: "1"})
		m.Unplug("/sys/devices/pci0000:00/0000:00:01.0")
		m.Apply(strings.Replace(blankIn("1", 7), "A: diskseq=7\n", "", 1))
		synctest.Wait()
		s, err := r.Current(t.Context(), diskID)
		if err != nil || s.Target != nil || !s.Residue {
			t.Errorf("without: %+v, %v", s, err)
		}
		if a := r.account(diskID); a.Reason != "not complete: its diskseq cannot be read" {
			t.Errorf("without: %q", a.Reason)
		}
		m.Apply(blankIn("1", 7))
		synctest.Wait()
		if a := r.account(diskID); !a.Leftover || !a.Erasable {
			t.Errorf("it is there again: %+v", a)
		}
	})
}
