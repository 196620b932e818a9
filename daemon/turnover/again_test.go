// SPDX-License-Identifier: Apache-2.0

package turnover_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/turnover"
	"github.com/metalplug/metalplug/integration/clock"
)

// TestHostDataThatAPodMayUse: with allow_in_use a pod is given a disk with the host's data; that it was started with
// it does not make the data its own.
func TestHostDataThatAPodMayUse(t *testing.T) {
	shared := func(t *testing.T, story func(b *bench)) {
		play(t, disk(1, 1, 7), sharedByHost, func(b *bench) {
			b.write("nvme1n1", "the host's dataset")
			b.inventory.LookAgain(idOf("nvme1n1"))
			synctest.Wait()
			b.ok(b.allocate("A", "nvme1n1"))
			b.ok(b.start("nvme1n1"))
			synctest.Wait()
			story(b)
			if b.content["nvme1n1"] == "" {
				t.Errorf("the host's data is erased; the helpers were asked for %q", b.did())
			}
		})
	}
	t.Run("after a reload", func(t *testing.T) {
		shared(t, func(b *bench) {
			b.set(zeroAfter)
			<-b.inventory.SetRules(b.rules(), nil)
			b.free("nvme1n1")
			synctest.Wait()
			clock.Pass(time.Hour)
		})
	})
}

// TestSamePodIsAllocatedAgain: the kubelet asks again for a pod whose container was started with the device, as it
// does when its checkpoint is lost and the container is started again.
func TestSamePodIsAllocatedAgain(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.turnover.Running = func(pod string) (bool, error) { return pod == "A", nil } // its sandbox, at least
		b.used("A", "nvme1n1")
		b.ok(b.allocate("A", "nvme1n1"))
		t.Log(b.start("nvme1n1"))
		if did := b.did(); strings.Contains(did, "erase") || b.content["nvme1n1"] == "" {
			t.Errorf("what the pod itself has written is erased: %q", did)
		}
	})
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
		b.turnover.Running = func(pod string) (bool, error) { return pod == "A", nil }
		b.used("A", "nvme1n1")
		err := b.allocate("A", "nvme1n1")
		synctest.Wait()
		clock.Pass(time.Minute)
		if did := b.did(); strings.Contains(did, "erase") || b.content["nvme1n1"] == "" {
			t.Errorf("what the pod itself has written is erased: %q, %v", did, err)
		}
	})
}

// TestCheckpointThatIsBehind: an older checkpoint has overwritten that with the new pod when its first container is
// started, since the kubelet's device manager writes it without a lock; when the container is started again it is right.
func TestCheckpointThatIsBehind(t *testing.T) {
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.used("A", "nvme1n1")
		b.ok(b.allocate("B", "nvme1n1"))
		b.owners[idOf("nvme1n1")] = []string{"A"}
		b.ok(b.start("nvme1n1"))
		b.write("nvme1n1", "B's ext4")
		b.owners[idOf("nvme1n1")] = []string{"B"}
		synctest.Wait()
		b.did()
		b.ok(b.start("nvme1n1"))
		if did := b.did(); strings.Contains(did, "erase") {
			t.Errorf("what the pod itself has written is erased when its container is started again: %q", did)
		}
	})
}

// TestPodThatStillRuns: a pod that was deleted by force has the device not open, and may open it any time. The next one
// waits for its end for a while, and is refused if that does not come.
func TestPodThatStillRuns(t *testing.T) {
	for name, test := range map[string]struct {
		ends    time.Duration
		refused string
	}{
		"for a moment": {3 * time.Second, ""},
		"for long":     {time.Hour, "device busy: pod A still runs"},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
				b.used("A", "nvme1n1")
				end := time.Now().Add(test.ends)
				b.turnover.Running = func(pod string) (bool, error) { return pod == "A" && time.Now().Before(end), nil }
				b.ok(b.allocate("B", "nvme1n1"))
				err := b.start("nvme1n1")
				if test.refused != "" {
					b.refused(err, test.refused)
				} else {
					b.ok(err)
				}
				if erased := strings.Contains(b.did(), "erase"); erased != (err == nil) {
					t.Errorf("erased: %v, started: %v", erased, err)
				}
			})
		})
	}
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) { // nor is it erased and offered before
		end := time.Now().Add(time.Hour)
		b.turnover.Running = func(pod string) (bool, error) { return pod == "A" && time.Now().Before(end), nil }
		b.used("A", "nvme1n1")
		b.free("nvme1n1")
		clock.Pass(30 * time.Minute)
		b.want("nvme1n1", "", "its pod is gone, but pod A still runs")
		clock.Pass(time.Hour)
		b.want("nvme1n1", "erase nvme1n1 zero", "")
	})
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) { // nor where nobody can tell
		b.turnover.Running = func(string) (bool, error) { return false, errors.New("the disk with the cgroups is on fire") }
		b.used("A", "nvme1n1")
		b.free("nvme1n1")
		clock.Pass(time.Minute)
		b.want("nvme1n1", "", "its pod is gone, but device busy: whether pod A still runs cannot be told: the disk with the cgroups is on fire")
	})
}

// TestUnknownPodIsBusy: where pods have no cgroups, no disk is erased on a guess; it stays as it is. A device that is not
// erased does not wait for what nothing can tell.
func TestUnknownPodIsBusy(t *testing.T) {
	unknown := func(string) (bool, error) { return false, cgroup.ErrNoKubepods }
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		b.turnover.Running = unknown
		b.used("A", "nvme1n1")
		b.ok(b.allocate("B", "nvme1n1"))
		b.refused(b.start("nvme1n1"), "device busy: whether pod A still runs cannot be told: no kubepods cgroup")
		if did := b.did(); strings.Contains(did, "erase") {
			t.Errorf("did %q", did)
		}
		b.turnover.Running = func(string) (bool, error) { return false, nil }
		b.ok(b.start("nvme1n1")) // the disk is not marked as unfit
	})
	play(t, widgets, turnover.Care{Method: turnover.None, Scrub: turnover.None, AtStart: true}, func(b *bench) {
		b.turnover.Running = unknown
		b.used("A", "widget0")
		b.ok(b.allocate("B", "widget0"))
		b.ok(b.start("widget0"))
	})
}

// TestUnreadPod: processes that cannot be read count against a device that their pod could have, and against no other.
func TestUnreadPod(t *testing.T) {
	unread := func(b *bench, pod string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.unread = []device.Holder{{PodUID: pod, Unread: "process 7: the kernel does not answer about it"}}
	}
	play(t, disk(1, 1, 7), zeroAtStart, func(b *bench) {
		unread(b, "attacker")
		b.ok(b.allocate("A", "nvme1n1"))
		b.ok(b.start("nvme1n1"))
		b.write("nvme1n1", "A's ext4")
		b.did()
		unread(b, "A") // another container of the pod may be at work
		b.ok(b.start("nvme1n1"))
		if did := b.did(); did != "" {
			t.Errorf("did %q to a device that its pod may have open", did)
		}
		b.free("nvme1n1")
		b.ok(b.allocate("B", "nvme1n1"))
		b.refused(b.start("nvme1n1"), "device busy: pod A may have it open: process 7: the kernel does not answer about it")
		unread(b, "B")
		b.refused(b.start("nvme1n1"), "device busy: pod B may have it open: ")
		unread(b, "attacker")
		b.ok(b.start("nvme1n1"))
		if did := b.did(); !strings.Contains(did, "erase") {
			t.Errorf("did %q for the next pod", did)
		}
	})
	play(t, disk(1, 1, 7), zeroAfter, func(b *bench) {
		b.used("A", "nvme1n1")
		unread(b, "A")
		b.free("nvme1n1")
		clock.Pass(time.Minute)
		b.want("nvme1n1", "", "its pod is gone, but pod A may have it open: process 7: the kernel does not answer about it")
		unread(b, "attacker")
		clock.Pass(time.Hour)
		b.want("nvme1n1", "erase nvme1n1 zero", "")
	})
}
