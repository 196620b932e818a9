// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
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

const (
	diskSerial = "00000000000000000000000000000001"
	diskID     = "nvme-eui." + diskSerial
)

// account is how a device stands between two pods.
type account struct {
	Held, Due, Dirty, Leftover, Pending, Uncleared, Erasable bool

	Pods    []string
	Failure string
	Reason  string
}

func (r *running) account(id string) account {
	r.t.Helper()
	s, err := r.Current(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	reason := ""
	if synctest.Wait(); true { // the reason is that of the snapshot
		snapshot, _ := r.Snapshot()
		if published := snapshot.Find(id); published != nil {
			reason = published.Reason
		}
	}
	return account{
		s.Held(), s.Hold == lease.Due, s.Used, s.Residue, s.Todo == inventory.CleanUp, s.Barred == "being cleared after its last pod",
		s.Reserved != "" && s.Barred != s.Reserved, s.Tenants, s.Failure, reason,
	}
}

// begin begins work on a device: to prepare it for the pod that holds it, or to clean it up.
func (r *running) begin(id, reason string) {
	r.t.Helper()
	event := lease.Clear
	if s, err := r.Current(r.t.Context(), id); err != nil || s.Held() {
		event = lease.Prepare
	}
	if _, err := r.Begin(r.t.Context(), id, event, reason); err != nil {
		r.t.Fatal(err)
	}
}

// did does work on a device, or ends what has begun.
func (r *running) did(id string, o inventory.Outcome) {
	r.t.Helper()
	if s, err := r.Current(r.t.Context(), id); err != nil || !s.Working() {
		if o.Event == lease.Start && err == nil && !s.Held() {
			r.Allocated(map[string][]string{id: {id}}, "")
		}
		r.begin(id, "")
	}
	r.Worked(id, o)
}

// diskOf is the recording of a disk in one of its appearances.
func diskOf(appearance int) string {
	return strings.Replace(blank(1, diskSerial, ""), "A: nsid=1", fmt.Sprintf("A: diskseq=%d\nA: nsid=1", appearance), 1)
}

// tenants are the rules by which disks are cleared and erased.
func tenants(clearedAtRelease, erasedAtStart bool) func(*inventory.Options) {
	return func(o *inventory.Options) {
		o.Rules = []device.Rule{
			{Resource: nvmeResource, Class: &device.NVMe, ClearedAtRelease: clearedAtRelease, ErasedAtStart: erasedAtStart},
			{Resource: "example.org/widget", Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "widget"}},
		}
	}
}

// contents lets disks be probed as if that was on them.
func contents(content *string) func(*inventory.Options) {
	return func(o *inventory.Options) {
		o.Host.Touch.Probe = func(_ context.Context, _ device.Target, held bool) (device.Reading, error) {
			if held {
				return device.Reading{}, nil
			}
			return device.Reading{Content: *content}, nil
		}
	}
}

func TestAccount(t *testing.T) {
	allocate := func(r *running) { r.Allocated(map[string][]string{diskID: {diskID}}, "") }
	begin := func(r *running) { r.begin(diskID, "") }
	work := func(o inventory.Outcome) func(*running) {
		return func(r *running) { r.did(diskID, o) }
	}
	erased := func(o inventory.Outcome) func(*running) {
		return func(r *running) {
			r.begin(diskID, "")
			r.Prepared(diskID, device.Prepared{Erased: true, Appearance: "7"})
			r.did(diskID, o)
		}
	}
	started := erased(inventory.Outcome{Event: lease.Start, Tenants: []string{"A"}})
	confirm := func(h inventory.Holding) func(*running) {
		return func(r *running) {
			clock.Pass(time.Millisecond)
			r.Confirm(time.Now(), map[string]inventory.Holding{diskID: h})
		}
	}
	free := confirm(inventory.Free)
	for _, c := range []struct {
		name  string
		steps []func(*running)
		want  account
	}{
		{"nothing", nil, account{}},
		{"allocated", []func(*running){allocate}, account{Held: true, Due: true}},
		{"allocated long ago, and the kubelet lists it", []func(*running){allocate, confirm(inventory.Held)}, account{Held: true, Due: true}},
		{"allocated, and not booked", []func(*running){allocate, free}, account{Held: true, Due: true}},
		{"started", []func(*running){allocate, started}, account{Held: true, Dirty: true, Leftover: true, Uncleared: true, Pods: []string{"A"}}},
		{
			"started without a word to us",
			[]func(*running){confirm(inventory.Held)},
			account{Held: true, Dirty: true, Leftover: true, Uncleared: true},
		},
		{
			"released",
			[]func(*running){allocate, started, free},
			account{Dirty: true, Leftover: true, Pending: true, Uncleared: true, Pods: []string{"A"}, Reason: "being cleared after its last pod"},
		},
		{
			"somebody lingers",
			[]func(*running){allocate, started, free, func(r *running) { r.Lingers(diskID, "pod A has it open") }},
			account{
				Dirty: true, Leftover: true, Pending: true, Uncleared: true, Pods: []string{"A"},
				Reason: "its pod is gone, but pod A has it open",
			},
		},
		{
			"somebody has lingered",
			[]func(*running){
				allocate, started, free, func(r *running) { r.Lingers(diskID, "pod A has it open") }, allocate, started, free,
			},
			account{Dirty: true, Leftover: true, Pending: true, Uncleared: true, Pods: []string{"A"}, Reason: "being cleared after its last pod"},
		},
		{"cleared", []func(*running){allocate, started, free, erased(inventory.Outcome{Event: lease.Cleared})}, account{}},
		{
			"cleared, and the next pod has come before",
			[]func(*running){allocate, started, free, begin, allocate, work(inventory.Outcome{Event: lease.Cleared})},
			account{Held: true, Due: true, Leftover: true},
		},
		{
			"nothing done",
			[]func(*running){allocate, started, free, work(inventory.Outcome{})},
			account{Dirty: true, Leftover: true, Pending: true, Uncleared: true, Pods: []string{"A"}, Reason: "being cleared after its last pod"},
		},
		{
			"failed",
			[]func(*running){allocate, started, free, work(inventory.Outcome{Event: lease.Fail, Failure: inventory.Failure{Err: errors.New("no answer")}})},
			account{
				Dirty: true, Leftover: true, Pending: true, Uncleared: true, Pods: []string{"A"}, Failure: "no answer", Reason: "no answer",
			},
		},
		{
			"failed, erased by hand while the vendor's step is to come",
			[]func(*running){
				allocate, started, free, work(inventory.Outcome{Event: lease.Fail, Failure: inventory.Failure{Err: errors.New("no answer")}}), erased(inventory.Outcome{Event: lease.Mended}), work(inventory.Outcome{}),
			},
			account{Dirty: true, Pending: true, Uncleared: true, Pods: []string{"A"}, Reason: "being cleared after its last pod"},
		},
		{
			"failed after an erasure, tried again in vain",
			[]func(*running){
				allocate, started, free, erased(inventory.Outcome{Event: lease.Fail, Failure: inventory.Failure{Err: errors.New("no answer")}}), work(inventory.Outcome{}),
			},
			account{Dirty: true, Pending: true, Uncleared: true, Pods: []string{"A"}, Failure: "no answer", Reason: "no answer"},
		},
		{
			"failed, then erased, and nothing else came of it",
			[]func(*running){
				allocate, started, free, work(inventory.Outcome{Event: lease.Fail, Failure: inventory.Failure{Err: errors.New("no answer")}}), erased(inventory.Outcome{}),
			},
			account{Dirty: true, Pending: true, Uncleared: true, Pods: []string{"A"}, Failure: "no answer", Reason: "no answer"},
		},
		{
			"failed before a start, tried again",
			[]func(*running){
				allocate, work(inventory.Outcome{Event: lease.Fail, Failure: inventory.Failure{Err: errors.New("no answer")}}), work(inventory.Outcome{}), started,
			},
			account{Held: true, Dirty: true, Leftover: true, Uncleared: true, Pods: []string{"A"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				state := t.TempDir()
				r := start(t, udevtest.New(t, diskOf(7)), state, tenants(true, false))
				for _, step := range c.steps {
					step(r)
					synctest.Wait()
				}
				if got := r.account(diskID); !reflect.DeepEqual(got, c.want) {
					t.Errorf("%+v\nwant %+v", got, c.want)
				}
				clock.Pass(time.Second) // until it is on disk
				crashed := t.TempDir()
				if err := os.CopyFS(crashed, os.DirFS(state)); err != nil {
					t.Fatal(err)
				}
				r = start(t, udevtest.New(t, diskOf(7)), crashed, tenants(true, false))
				c.want.Reason = strings.Replace(c.want.Reason, "its pod is gone, but pod A has it open", "being cleared after its last pod", 1)
				if got := r.account(diskID); !reflect.DeepEqual(got, c.want) {
					t.Errorf("after a crash %+v\nwant %+v", got, c.want)
				}
			})
		})
	}
}

func TestKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := t.TempDir()
		r := start(t, udevtest.New(t, diskOf(7)), state, tenants(true, false))
		began := time.Now()
		r.did(diskID, inventory.Outcome{Event: lease.Start})
		if err := errors.Join(r.Kept(t.Context()), r.Started(t.Context(), diskID)); err != nil {
			t.Fatal(err)
		}
		snapshot, _ := r.Snapshot()
		text, err := os.ReadFile(filepath.Join(state, "state.json"))
		if err != nil || !strings.Contains(string(text), `"used":true`) || snapshot.Find(diskID).Barred == "" {
			t.Errorf("on disk is %s, %v", text, err)
		}
		if took := time.Since(began); took > 100*time.Millisecond { // of the bubble's time: no timer was waited for
			t.Errorf("it took %v", took)
		}
		if err := r.Kept(t.Context()); err != nil { // nothing to write
			t.Error(err)
		}
		if err := os.MkdirAll(filepath.Join(state, "state.json.new/full"), 0o755); err != nil { // where it is written first
			t.Fatal(err)
		}
		r.did(diskID, inventory.Outcome{Event: lease.Cleared})
		if err := r.Kept(t.Context()); err == nil || !strings.Contains(err.Error(), "state.json.new") {
			t.Errorf("%v", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		// It may have been answered before that is seen.
		if err := r.Kept(ended); err == nil || !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "state.json.new") {
			t.Errorf("%v", err)
		}
		r.stop()
		r.stop = func() {}
		if err := r.Kept(t.Context()); err == nil {
			t.Error("kept by an inventory that has stopped")
		}
	})
	synctest.Test(t, func(t *testing.T) { // without a store
		r := start(t, udevtest.New(t, diskOf(7)), "", tenants(true, false))
		r.did(diskID, inventory.Outcome{Event: lease.Start})
		if err := r.Kept(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestCurrentOfNothing(t *testing.T) {
	r := start(t, udevtest.New(t, diskOf(7)), "")
	if s, err := r.Current(t.Context(), "nothing"); s != nil || !errors.Is(err, inventory.ErrUnknownDevice) {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := r.Begin(t.Context(), "nothing", lease.Clear, ""); !errors.Is(err, inventory.ErrUnknownDevice) {
		t.Error(err)
	}
	r.Prepared("nothing", device.Prepared{})
	r.Worked("nothing", inventory.Outcome{Event: lease.Start})
	r.Lingers("nothing", "somebody")
	if err := r.Alive(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNothingElseIsErasable: what is on a disk is erased for the next pod only where a pod has left it.
func TestErasable(t *testing.T) {
	for _, c := range []struct {
		name    string
		rules   func(*inventory.Options)
		started bool
		seen    func(m *udevtest.Machine) // meanwhile
		want    string
	}{
		{"left by a pod, erased at the start", tenants(false, true), true, nil, diskID + " Healthy"},
		{"left by a pod, not erased", tenants(false, false), true, nil, diskID + " Unhealthy (in use: it holds data: ext4 is on it)"},
		{"not left by a pod", tenants(false, true), false, nil, diskID + " Unhealthy (in use: it holds data: ext4 is on it)"},
		{"of another appearance", tenants(false, true), true, func(m *udevtest.Machine) { m.Apply(diskOf(8)) }, diskID + " Unhealthy (in use: it holds data: ext4 is on it)"},
		{"mounted too", tenants(false, true), true, func(m *udevtest.Machine) {
			m.Apply(strings.Replace(diskOf(7), "mountinfo=", `mountinfo=36 25 259:1 / /srv rw - xfs /dev/nvme1n1 rw\n`, 1))
		}, diskID + " Unhealthy (in use: nvme1n1 is mounted on /srv)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				content := ""
				m := udevtest.New(t, diskOf(7))
				r := start(t, m, "", c.rules, contents(&content))
				r.Allocated(map[string][]string{diskID: {diskID}}, "")
				if c.started {
					r.did(diskID, inventory.Outcome{Event: lease.Start})
				}
				synctest.Wait()
				content = "ext4"
				clock.Pass(time.Millisecond)
				r.Released([]string{diskID})
				r.did(diskID, inventory.Outcome{Event: lease.Cleared})
				synctest.Wait()
				if c.seen != nil {
					c.seen(m)
					synctest.Wait()
				}
				if snapshot, _ := r.Snapshot(); describeOffer(snapshot.Offer(nvmeResource)) != c.want {
					t.Errorf("%s, want %s", describe(snapshot), c.want)
				}
			})
		})
	}
}

// TestFrozen: what the hardware does while something is done to it is nobody's concern; what goes wrong is.
func TestFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := udevtest.New(t, diskOf(7))
		r := start(t, m, t.TempDir())
		check := func(when, want string) {
			t.Helper()
			synctest.Wait()
			if snapshot, _ := r.Snapshot(); describeOffer(snapshot.Offer(nvmeResource)) != want {
				t.Errorf("%s: %s, want %s", when, describe(snapshot), want)
			}
		}
		state := func(state string) { m.SetAttr("/sys/devices/pci0000:00/0000:00:01.0/nvme/nvme1", "state", state) }
		r.begin(diskID, "")
		if _, err := r.Begin(t.Context(), diskID, "", ""); err != nil { // another device that is reset hits it
			t.Fatal(err)
		}
		for range 10 { // more often than a device may be sick
			state("resetting")
			check("while it is worked on", diskID+" Healthy")
			state("live")
		}
		r.did(diskID, inventory.Outcome{})
		state("resetting")
		check("by the other still", diskID+" Healthy")
		if err := r.Cordon(t.Context(), diskID, inventory.Cordon{Reason: "x"}); err != nil {
			t.Fatal(err)
		}
		check("cordoned meanwhile", diskID+" Unhealthy (cordoned: x)")
		if _, err := r.Uncordon(t.Context(), diskID); err != nil {
			t.Fatal(err)
		}
		check("uncordoned meanwhile", diskID+" Healthy")
		r.Worked(diskID, inventory.Outcome{})
		check("after that", diskID+" Unhealthy (controller nvme1 is resetting)")
		state("live")
		check("well again", diskID+" Healthy")
		r.begin(diskID, "being erased by hand")
		check("with a reason", diskID+" Unhealthy (being erased by hand)")
		r.did(diskID, inventory.Outcome{})
		check("without a reason", diskID+" Healthy")
		r.begin(diskID, "")
		r.did(diskID, inventory.Outcome{Event: lease.Fail, Failure: inventory.Failure{Err: errors.New("no answer")}})
		check("failed", diskID+" Unhealthy (no answer)")
	})
}

// TestDeviceIsClearedBeforeItLeaves: for another resource, which would not know what to clear.
func TestDeviceIsClearedBeforeItLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, udevtest.New(t, diskOf(7)), "", tenants(true, false))
		r.Allocated(map[string][]string{diskID: {diskID}}, "")
		r.did(diskID, inventory.Outcome{Event: lease.Start})
		<-r.SetRules([]device.Rule{
			{Resource: "example.org/other", Class: &device.NVMe},
			{Resource: nvmeResource, Class: &device.NVMe, Match: map[string]string{"DEVNAME": "/dev/nothing"}, ClearedAtRelease: true},
		}, nil)
		free := func() {
			clock.Pass(time.Millisecond)
			r.Confirm(time.Now(), map[string]inventory.Holding{diskID: inventory.Free})
			synctest.Wait()
		}
		free()
		if got := r.account(diskID); !got.Pending || !strings.Contains(got.Reason, "example.org/other") {
			t.Errorf("%+v", got)
		}
		r.did(diskID, inventory.Outcome{Event: lease.Cleared})
		free()
		snapshot, _ := r.Snapshot()
		if got := describeOffer(snapshot.Offer("example.org/other")); got != diskID+" Healthy" {
			t.Errorf("%s", describe(snapshot))
		}
	})
}

// TestFirstSnapshotWaitsForDisksThatAreRead: with several slow disks it is long complete before the wait for any one of
// them is over.
func TestFirstSnapshotWaitsForDisksThatAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const mounts = "F: /proc/self/mountinfo=\n\n" // once for all
		var machine strings.Builder
		machine.WriteString(mounts)
		for n := range 5 {
			machine.WriteString(strings.TrimPrefix(blank(n, fmt.Sprintf("S%d", n), ""), mounts))
		}
		bus := make(chan bool, 1)
		r := start(t, udevtest.New(t, machine.String()), "", tenants(false, false), settledSoon, func(o *inventory.Options) {
			o.Host.Touch.Probe = func(context.Context, device.Target, bool) (device.Reading, error) {
				bus <- true
				<-time.After(o.Settle * 9 / 10) // of the bubble's clock
				<-bus
				return device.Reading{}, nil
			}
		})
		s, _ := r.Snapshot()
		if got := len(s.Offer(nvmeResource).Devices); got != 5 {
			t.Errorf("the first snapshot has %d disks of 5", got)
		}
	})
}

// TestFirstSnapshotSaysWhatItIsWithout: a device that answers too late is not waited for, and why is in the log.
func TestFirstSnapshotSaysWhatItIsWithout(t *testing.T) {
	const line = "started before all was seen"
	slow := make(chan struct{})
	for _, test := range []struct {
		name   string
		change func(*udevtest.Machine, *inventory.Options)
		want   string
	}{
		{"all is there", func(*udevtest.Machine, *inventory.Options) {}, ""},
		{"udevd is late", func(m *udevtest.Machine, _ *inventory.Options) { m.SetSettled(false) }, "udevd has not worked off its events"},
		{"a disk is slow", func(_ *udevtest.Machine, o *inventory.Options) {
			o.Host.Touch.Probe = func(context.Context, device.Target, bool) (device.Reading, error) {
				<-slow
				return device.Reading{}, nil
			}
		}, "devices that are still looked at: 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow = make(chan struct{}) // of this bubble
				var log strings.Builder
				m := udevtest.New(t, blank(0, "S0", ""))
				r := start(t, m, "", tenants(false, false), settledSoon, func(o *inventory.Options) {
					o.Log = slog.New(slog.NewTextHandler(&log, nil))
					test.change(m, o)
				})
				synctest.Wait()
				if strings.Contains(log.String(), line) != (test.want != "") || !strings.Contains(log.String(), test.want) {
					t.Errorf("the log is %q, wanted %q", log.String(), test.want)
				}
				close(slow)
				r.stop()
				r.stop = func() {}
			})
		})
	}
}
