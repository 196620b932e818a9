// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"slices"
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

// released brings a disk of "when = release" to where its pod is gone and it has to be erased.
func released(t *testing.T, r *running) {
	t.Helper()
	r.Allocated(map[string][]string{diskID: {diskID}}, "")
	r.did(diskID, inventory.Outcome{Event: lease.Start, Tenants: []string{"A"}})
	synctest.Wait()
	clock.Pass(time.Millisecond)
	r.Confirm(time.Now(), map[string]inventory.Holding{diskID: inventory.Free})
	synctest.Wait()
	if a := r.account(diskID); !a.Dirty || !a.Uncleared {
		t.Fatalf("%+v", a)
	}
	clock.Pass(time.Second) // on disk
}

// quarantined wants that nobody gets the disk before it was erased, though nothing that was read of it shows data.
func quarantined(t *testing.T, r *running, resource string) {
	t.Helper()
	synctest.Wait()
	s, _ := r.Snapshot()
	if d := s.Offer(resource).Find(diskID); d == nil || d.Healthy || d.Barred == "" {
		t.Errorf("it is offered to the next pod unerased: %s", describe(s))
	}
}

func TestRecordIsKept(t *testing.T) {
	const path = "/sys/devices/pci0000:00/0000:00:01.0"
	other := func(o *inventory.Options) {
		o.Rules = []device.Rule{{Resource: "example.org/widget", Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "widget"}}}
	}
	t.Run("dropped off the bus, its pod is deleted, and it is back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := udevtest.New(t, diskOf(7))
			r := start(t, m, t.TempDir(), tenants(true, false))
			r.Allocated(map[string][]string{diskID: {diskID}}, "")
			r.did(diskID, inventory.Outcome{Event: lease.Start, Tenants: []string{"A"}})
			synctest.Wait()
			m.Unplug(path)
			synctest.Wait()
			clock.Pass(time.Minute)
			r.Confirm(time.Now(), map[string]inventory.Holding{diskID: inventory.Free})
			synctest.Wait()
			m.Apply(diskOf(8))
			quarantined(t, r, nvmeResource)
		})
	})
	t.Run("waiting to be erased, dropped off the bus, and back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := udevtest.New(t, diskOf(7))
			r := start(t, m, t.TempDir(), tenants(true, false))
			released(t, r)
			m.Unplug(path)
			synctest.Wait()
			r.Confirm(time.Now(), map[string]inventory.Holding{diskID: inventory.Free})
			synctest.Wait()
			m.Apply(diskOf(8))
			quarantined(t, r, nvmeResource)
		})
	})
	t.Run("a start without its resource in the configuration", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			state := t.TempDir()
			m := udevtest.New(t, diskOf(7)+widget("widget0", "A"))
			r := start(t, m, state, tenants(true, false))
			released(t, r)
			r.stop()
			r.stop = func() {}
			r = start(t, m, state, other)
			synctest.Wait()
			clock.Pass(time.Minute)
			r.stop()
			r.stop = func() {}
			r = start(t, m, state, tenants(true, false))
			quarantined(t, r, nvmeResource)
		})
	})
	t.Run("its resource is renamed by a reload", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, udevtest.New(t, diskOf(7)), t.TempDir(), tenants(true, false))
			released(t, r)
			<-r.SetRules([]device.Rule{{Resource: "example.org/renamed", Class: &device.NVMe, ClearedAtRelease: true}}, nil)
			synctest.Wait()
			clock.Pass(time.Minute)
			r.Confirm(time.Now(), map[string]inventory.Holding{diskID: inventory.Free}) // it is Stale, so the daemon asks
			synctest.Wait()
			if a := r.account(diskID); !a.Dirty {
				t.Errorf("that it has to be erased is forgotten: %+v", a)
			}
		})
	})
}

// scsi is a disk that is known by its slot alone, on a kernel without diskseq (before 5.15).
func scsi() string {
	const p = "/devices/pci0000:00/0000:00:05.0/virtio1/block/vdb"
	return "F: /proc/self/mountinfo=\n\nP: " + p + "\nN: vdb\nE: SUBSYSTEM=block\nE: DEVTYPE=disk\nE: DEVNAME=/dev/vdb\nE: MAJOR=254\nE: MINOR=16\n" +
		"E: ID_PATH=pci-0000:00:05.0\nA: size=1024\nA: ro=0\nA: dev=254:16\n\n"
}

// TestSwappedWhileAway: what a pod has left was on another disk, though it is in the same slot.
func TestSwappedWhileAway(t *testing.T) {
	const resource, id = "example.org/disk", "node-pci-0000:00:05.0"
	content := ""
	rules := func(o *inventory.Options) {
		o.Rules = []device.Rule{{Resource: resource, Class: &device.Generic, Match: map[string]string{"DEVNAME": "/dev/vdb"}, ErasedAtStart: true}}
	}
	synctest.Test(t, func(t *testing.T) {
		state := t.TempDir()
		r := start(t, udevtest.New(t, scsi()), state, rules, contents(&content))
		r.Allocated(map[string][]string{id: {id}}, "")
		r.did(id, inventory.Outcome{Event: lease.Start, Tenants: []string{"A"}})
		synctest.Wait()
		content = "A's ext4"
		clock.Pass(time.Millisecond)
		r.Confirm(time.Now(), map[string]inventory.Holding{id: inventory.Free})
		r.did(id, inventory.Outcome{Event: lease.Cleared})
		synctest.Wait()
		if a := r.account(id); !a.Leftover || !a.Erasable {
			t.Fatalf("%+v", a)
		}
		clock.Pass(time.Second)
		r.stop()
		r.stop = func() {}
		content = "the operator's ext4"
		r = start(t, udevtest.New(t, scsi()), state, rules, contents(&content)) // other directories in sysfs: another inode
		synctest.Wait()
		if a := r.account(id); a.Leftover || a.Erasable {
			t.Errorf("another disk is to be erased: %+v", a)
		}
	})
}

// TestCopyIsNotErased: two disks with one identity after a boot; the first that is seen has what the operator keeps.
func TestCopyIsNotErased(t *testing.T) {
	boot := func(id string) string { return "F: /proc/sys/kernel/random/boot_id=" + id + "\n\n" }
	content := ""
	synctest.Test(t, func(t *testing.T) {
		state := t.TempDir()
		r := start(t, udevtest.New(t, boot("1")+diskOf(7)), state, tenants(true, false), contents(&content))
		released(t, r)
		r.stop()
		r.stop = func() {}
		content = "the operator's ext4"
		both := strings.Replace(blank(0, diskSerial, ""), "F: /proc/self/mountinfo=\n\n", "", 1)
		r = start(t, udevtest.New(t, boot("2")+diskOf(3)+both), state, tenants(true, false), contents(&content))
		synctest.Wait()
		clock.Pass(time.Minute)
		synctest.Wait()
		s, _ := r.Snapshot()
		t.Log(describe(s))
		var at []string
		for _, d := range s.Offer(nvmeResource).Devices {
			if d.Residue && d.Todo == inventory.CleanUp && d.Present {
				at = append(at, d.Device.SysPath)
			}
		}
		slices.Sort(at)
		if len(at) > 0 {
			t.Errorf("to be erased, though two disks claim that identity: %v", at)
		}
	})
}

// TestDeviceChangesOver: to the resource that it belongs to by the new rules, also if nothing was published just before.
func TestDeviceChangesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, udevtest.New(t, diskOf(7)), "", tenants(false, false))
		r.Allocated(map[string][]string{diskID: {diskID}}, "1")
		r.Kubelet("2") // which has died before it could book that
		synctest.Wait()
		<-r.SetRules([]device.Rule{
			{Resource: "example.org/other", Class: &device.NVMe},
			{Resource: nvmeResource, Class: &device.NVMe, Match: map[string]string{"DEVNAME": "/dev/nothing"}},
		}, nil)
		for range 3 {
			clock.Pass(time.Minute + time.Second) // the class is looked at every minute: nothing is published at that second
			_, changed := r.Snapshot()
			r.Confirm(time.Now(), map[string]inventory.Holding{diskID: inventory.Free})
			<-changed
			if s, _ := r.Snapshot(); strings.Contains(describeOffer(s.Offer(nvmeResource)), "Healthy") && !strings.Contains(describeOffer(s.Offer(nvmeResource)), "Unhealthy") {
				t.Errorf("offered by the resource that it does not belong to: %s", describe(s))
			}
			synctest.Wait()
		}
		snapshot, _ := r.Snapshot()
		if got := describeOffer(snapshot.Offer("example.org/other")); got != diskID+" Healthy" {
			t.Errorf("%s", describe(snapshot))
		}
	})
}

// TestForgedSignature: what a pod has written makes the host assemble an array of it; that is the pod's doing as long
// as the disk was not cleared.
func TestForgedSignature(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := udevtest.New(t, diskOf(7))
		r := start(t, m, t.TempDir(), tenants(true, false))
		released(t, r)
		m.Apply(strings.Replace(diskOf(7), "A: nsid=1\n", "A: nsid=1\nA: holders/md127=\n", 1)) // mdadm --incremental, by udev
		synctest.Wait()
		if a := r.account(diskID); !a.Dirty || !a.Leftover {
			t.Errorf("assembled: what the pod has left counts as the host's: %+v", a)
		}
		m.Apply(diskOf(7)) // mdadm --stop, by the operator
		synctest.Wait()
		if a := r.account(diskID); !a.Dirty || !a.Leftover {
			t.Errorf("stopped: %+v", a)
		}
	})
}
