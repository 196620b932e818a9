// SPDX-License-Identifier: Apache-2.0

package verdict_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// TestVerdict checks health and reason for given facts.
func TestVerdict(t *testing.T) {
	ext4 := fmt.Errorf("%w: the disk contains ext4", device.ErrData)
	mounted := fmt.Errorf("%w: it is mounted", device.ErrInUse)
	unanswered := fmt.Errorf("metalplug cannot prove that the disk is empty: %w", device.ErrUnanswered)
	disk := func(f *verdict.Facts, v evidence.Evidence) {
		f.Seen.Device, f.Seen.Target = &device.Device{ID: "nvme-1"}, &device.Target{Disk: true}
		f.Disk = verdict.DiskFacts{Surveyed: true, Watched: true, Presence: "here", Evidence: &v}
	}
	unread := evidence.Evidence{Size: 100, Read: 3}
	rule := device.Rule{Resource: "a/b", ErasedAtStart: true}
	used := lease.Lease{State: lease.Released, Used: true, Residue: true}
	held := lease.Lease{State: lease.InUse, Hold: lease.Started, Used: true, Residue: true}
	for _, test := range []struct {
		name   string
		change func(*verdict.Facts)
		want   string // "healthy", or the reason
		barred string
	}{
		{"nothing speaks against it", func(*verdict.Facts) {}, "healthy", ""},
		{"gone", func(f *verdict.Facts) { f.Seen = nil }, "gone", ""},
		{"not seen since the start", func(f *verdict.Facts) { f.Seen, f.Known = nil, false }, "not found since metalplugd started", ""},
		{"of another resource now", func(f *verdict.Facts) { f.Seen.Resource = "c/d" }, "the device now belongs to resource c/d, and moves there once no pod holds the device", ""},
		{"in use by the host", func(f *verdict.Facts) { f.Seen.Offer = mounted }, "in use: it is mounted", ""},
		{"in use by its pod", func(f *verdict.Facts) { f.Seen.Offer, f.Lease = mounted, held }, "healthy", "in use: it is mounted"},
		{"with data that no tenant left", func(f *verdict.Facts) { f.Seen.Offer = ext4 }, "not empty: the disk contains ext4", ""},
		{"with data of a pod that is erased", func(f *verdict.Facts) { f.Seen.Offer, f.Lease = ext4, used }, "healthy", ""},
		{"with data of a pod that nothing erases", func(f *verdict.Facts) { f.Seen.Offer, f.Lease, f.Rule = ext4, used, &device.Rule{} }, "not empty: the disk contains ext4", ""},
		{"with other data than its pod has left", func(f *verdict.Facts) {
			f.Seen.Offer, f.Lease, f.Same = ext4, lease.Lease{State: lease.Free, Residue: true}, false
		}, "not empty: the disk contains ext4", ""},
		{"being erased, so that no helper answers", func(f *verdict.Facts) {
			disk(f, unread)
			f.Seen.Offer, f.Lease, f.Rule = unanswered, used, &device.Rule{ClearedAtRelease: true}
		}, "being cleared after the last pod", "being cleared after the last pod"},
		{"not erased, and no helper answers", func(f *verdict.Facts) {
			disk(f, unread)
			f.Seen.Offer, f.Lease, f.Rule = unanswered, used, &device.Rule{ClearedAtRelease: true}
			f.Lease.Failure = "erase failed"
		}, "erase failed", "being cleared after the last pod"},
		{"no helper answers, and nothing is to be erased", func(f *verdict.Facts) {
			disk(f, unread)
			f.Seen.Offer = unanswered
		}, "metalplug cannot prove that the disk is empty: no answer", ""},
		{"not proven", func(f *verdict.Facts) { disk(f, unread) }, "unproven: being read, 3 %", ""},
		{"not proven, and a pod has it", func(f *verdict.Facts) { disk(f, unread); f.Lease = held }, "healthy", ""},
		{"left by a pod, and not erased", func(f *verdict.Facts) {
			disk(f, unread)
			f.Lease, f.Rule = used, &device.Rule{}
		}, "unproven: the last pod has just ended", ""},
		{"nothing to know it by", func(f *verdict.Facts) {
			disk(f, unread)
			f.Disk.Presence = ""
		}, "unproven: the disk has no wwid, serial number or diskseq; give a virtual disk a serial number, or run Linux 5.15 or later", ""},
		{"with data that was found", func(f *verdict.Facts) {
			disk(f, evidence.Evidence{Found: "ext4"})
		}, "unproven: ext4; metalplugctl reset nvme-1 --scrub zero erases and offers the disk", ""},
		{"adopted", func(f *verdict.Facts) { disk(f, evidence.Evidence{Scrub: "zero"}) }, "unproven: adopted, being erased", ""},
		{"adopted and cordoned", func(f *verdict.Facts) {
			disk(f, evidence.Evidence{Scrub: "zero"})
			f.Cordon = "new"
		}, "unproven: adopted; to erase it, run \"metalplugctl uncordon nvme-1\"", ""},
		{"adopted, and in use", func(f *verdict.Facts) {
			disk(f, evidence.Evidence{Scrub: "zero"})
			f.Delay = "dd has the device open"
		}, "unproven: adopted, and not erased yet: dd has the device open", ""},
		{"blank, and its holders are not known", func(f *verdict.Facts) {
			disk(f, evidence.Evidence{Kind: evidence.Blank})
		}, "unproven: being checked", ""},
		{"proven", func(f *verdict.Facts) { disk(f, evidence.Evidence{Kind: evidence.Blank, Asked: "here"}) }, "healthy", ""},
		{"proven before it was plugged in again", func(f *verdict.Facts) {
			disk(f, evidence.Evidence{Kind: evidence.Erased, Asked: "here", Of: "there"})
		}, "unproven: being checked", ""},
		{"to be cleared", func(f *verdict.Facts) { f.Lease, f.Rule = used, &device.Rule{ClearedAtRelease: true} }, "being cleared after the last pod", "being cleared after the last pod"},
		{"a process has it still", func(f *verdict.Facts) { f.Lease, f.Delay = used, "pod A has the device open" }, "the pod has ended, but pod A has the device open", ""},
		{"failed", func(f *verdict.Facts) { f.Lease.State, f.Lease.Failure = lease.Failed, "no answer" }, "no answer", ""},
		{"failed and sick", func(f *verdict.Facts) { f.Lease.Failure, f.Seen.Health = "no answer", errors.New("sick") }, "sick", ""},
		{"sick, and marked", func(f *verdict.Facts) { f.Seen.Health, f.Faults.Marks = errors.New("sick"), []string{"Xid 79"} }, "sick; Xid 79", ""},
		{"does not answer", func(f *verdict.Facts) { f.Faults.Stuck = time.Minute }, "the hardware has not answered for 1m0s", ""},
		{"sick too often", func(f *verdict.Facts) { f.Faults.Flapping = "it fails too often" }, "it fails too often", ""},
		{"to be initialised", func(f *verdict.Facts) { f.Rule = &device.Rule{Init: "x@.service"} }, "being initialised", ""},
		{"not initialised", func(f *verdict.Facts) { f.Rule, f.Uninit = &device.Rule{Init: "x@.service"}, "it failed" }, "it failed", ""},
		{"initialised", func(f *verdict.Facts) { f.Rule, f.Firmware = &device.Rule{Init: "x@.service"}, "x@.service" }, "healthy", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := verdict.Facts{
				Seen: &device.Sighting{Resource: "a/b"}, Known: true, Resource: "a/b", Offered: true, Rule: &rule,
				Lease: lease.Lease{State: lease.Free}, Same: true,
			}
			test.change(&f)
			v := f.Verdict()
			got := v.Reason
			if v.Healthy {
				got += "healthy"
			}
			if got != test.want || v.Barred != test.barred {
				t.Errorf("%q, barred %q", got, v.Barred)
			}
		})
	}
}

// TestLost checks when the pod of a device cannot use it any more. A temporary state does not count.
func TestLost(t *testing.T) {
	here := &device.Sighting{Health: errors.New("the link is down")}
	for _, test := range []struct {
		name string
		verdict.Facts
		want bool
	}{
		{"gone", verdict.Facts{Known: true}, true},
		{"a fault until the next reset", verdict.Facts{Known: true, Seen: here, Faults: verdict.Faults{Marks: []string{"Xid 79"}}}, true},
		{"not found since the start", verdict.Facts{}, false},
		{"a fault that may pass", verdict.Facts{Known: true, Seen: here}, false},
		{"gone while metalplug resets it", verdict.Facts{Known: true, Frozen: &verdict.Verdict{}}, false},
	} {
		if got := test.Lost(); got != test.want {
			t.Errorf("%s: lost is %v", test.name, got)
		}
	}
}
