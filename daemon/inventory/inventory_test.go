// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/statefile"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/integration/udevtest"
	"github.com/metalplug/metalplug/udev"
)

// widget is the recording of a device of no particular kind.
func widget(name, serial string) string {
	return fmt.Sprintf("P: /devices/virtual/widget/%[1]s\nN: %[1]s\nE: DEVNAME=/dev/%[1]s\nE: SUBSYSTEM=widget\n"+
		"E: ID_SERIAL=%[2]s\nE: ID_SERIAL_SHORT=%[2]s\nE: MAJOR=240\nE: MINOR=%[3]s\nA: sick=0\n\n", name, serial, strings.TrimLeft(name, "widget"))
}

// blank is the recording of an unused NVMe namespace.
func blank(controller int, serial, properties string) string {
	pci := fmt.Sprintf("/devices/pci0000:00/0000:00:%02x.0", controller)
	return fmt.Sprintf(`F: /proc/self/mountinfo=

P: %[1]s
E: SUBSYSTEM=pci
E: DRIVER=nvme
A: numa_node=0

P: %[1]s/nvme/nvme%[2]d
E: SUBSYSTEM=nvme
A: state=live
A: transport=pcie
A: model=Drive
A: serial=%[3]s

P: %[1]s/nvme/nvme%[2]d/nvme%[2]dn1
N: nvme%[2]dn1
E: SUBSYSTEM=block
E: DEVTYPE=disk
E: DEVNAME=/dev/nvme%[2]dn1
E: MAJOR=259
E: MINOR=%[2]d
%[4]sA: wwid=eui.%[3]s
A: nsid=1
A: size=1024
A: ro=0
A: hidden=0

`, pci, controller, serial, properties)
}

const nvmeResource = "metalplug.io/nvme"

var rules = []device.Rule{
	{Resource: "example.org/widget", Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "widget", "ATTR{sick}": "0"}},
	{Resource: nvmeResource, Class: &device.NVMe},
	{Resource: "metalplug.io/infiniband", Class: &device.InfiniBand},
}

// running is an inventory that runs on a simulated machine.
type running struct {
	*inventory.Inventory
	t       *testing.T
	machine *udevtest.Machine
	stop    func()
}

func start(t *testing.T, m *udevtest.Machine, state string, changes ...func(*inventory.Options)) *running {
	t.Helper()
	r := begin(t, m, state, changes...)
	r.ready()
	return r
}

// ready waits until the inventory is ready.
func (r *running) ready() {
	r.t.Helper()
	select {
	case <-r.Ready():
	case <-time.After(20 * time.Second):
		r.t.Fatal("the inventory is never ready")
	}
}

// settledSoon limits the wait for a complete first snapshot to a second.
func settledSoon(o *inventory.Options) { o.Settle = time.Second }

// begin starts an inventory and does not wait until it is ready.
func begin(t *testing.T, m *udevtest.Machine, state string, changes ...func(*inventory.Options)) *running {
	t.Helper()
	log := slog.New(slog.NewTextHandler(testWriter{t}, nil))
	o := inventory.Options{
		Source: m, Rules: rules, Log: log, Grace: time.Nanosecond,
		Settle: time.Hour, // even on a busy machine the first snapshot has all devices
		Host:   &device.Host{Tree: sysfs.At(m.Root())},
	}
	for _, change := range changes {
		change(&o)
	}
	if state == "" {
		state = t.TempDir()
	}
	if o.Store == nil {
		o.Store = statefile.Open(state, log)
	}
	r := &running{Inventory: inventory.New(o), t: t, machine: m}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	}
	t.Cleanup(func() { r.stop(); r.stop = func() {} })
	return r
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// waitSnapshot waits for a snapshot for which wanted returns true.
func (r *running) waitSnapshot(what string, wanted func(*inventory.Snapshot) bool) *inventory.Snapshot {
	r.t.Helper()
	limit := time.After(20 * time.Second)
	for {
		s, changed := r.Snapshot()
		if wanted(s) {
			return s
		}
		select {
		case <-changed:
		case <-limit:
			r.t.Fatalf("never: %s; the offer is %s", what, describe(s))
		}
	}
}

// waitOffer waits until the offer of a resource is as described, in the form "ID Healthy, ID Unhealthy (reason)".
func (r *running) waitOffer(resource, want string) {
	r.t.Helper()
	r.waitSnapshot(resource+" is "+want, func(s *inventory.Snapshot) bool { return describeOffer(s.Offer(resource)) == want })
}

// confirm passes an answer of the kubelet about a device, and waits until the inventory has processed it.
func (r *running) confirm(asked time.Time, id string, holding kubelet.Holding) {
	r.t.Helper()
	r.Confirm(kubelet.Answer{Asked: asked, Holdings: map[string]kubelet.Holding{id: holding}})
	if err := r.Alive(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

func describe(s *inventory.Snapshot) string {
	var all []string
	for name, o := range s.Offers {
		all = append(all, name+": "+describeOffer(o))
	}
	for _, o := range s.Others {
		all = append(all, fmt.Sprintf("not offered: %s %s (%s)", o.Device.ID, o.Device.SysPath, o.Reason))
	}
	return strings.Join(all, "; ")
}

func describeOffer(o *inventory.Offer) string {
	all := make([]string, len(o.Devices))
	for i, d := range o.Devices {
		all[i] = d.Device.ID + " Healthy"
		if !d.Healthy {
			all[i] = fmt.Sprintf("%s Unhealthy (%s)", d.Device.ID, d.Reason)
		}
	}
	return strings.Join(all, ", ")
}

// Two devices may be two paths to one disk, for example to a drive with two ports that the kernel does not combine. If both
// devices were offered, two pods could share the disk.
func TestTwoDisksWithOneIdentity(t *testing.T) {
	const wwid = "00000000000000000000000000000001"
	m := udevtest.New(t, blank(1, wwid, ""))
	r := start(t, m, "")
	m.Plug(blank(2, wwid, ""))
	r.waitSnapshot("the second is held back", func(s *inventory.Snapshot) bool {
		return len(s.Others) == 1 && strings.Contains(s.Others[0].Reason, "nvme1n1 has the same identity: two paths to one disk")
	})
	const id = "nvme-eui." + wwid
	r.waitSnapshot("the first is held back", func(s *inventory.Snapshot) bool {
		d := s.Offer(nvmeResource).Find(id)
		return d != nil && !d.Healthy && strings.Contains(d.Reason, "nvme2n1 has the same identity: two paths to one disk")
	})
	m.Unplug("/sys/devices/pci0000:00/0000:00:02.0")
	r.Inspect(id)
	r.waitOffer(nvmeResource, id+" Healthy")
}

func TestFailedEnumerationIsNotTheEnd(t *testing.T) {
	m := udevtest.New(t, widget("widget0", "A"))
	r := start(t, m, "")
	m.Break(errors.New("no database"))
	m.Send(udev.Event{Action: udev.Overflow})
	m.Plug(widget("widget1", "B"))
	r.waitOffer("example.org/widget", "node-A-widget Healthy, node-B-widget Healthy")
}

func TestIDJustAllocatedIsNotFree(t *testing.T) {
	m := udevtest.New(t, widget("widget0", "A"))
	r := start(t, m, "", func(o *inventory.Options) { o.Grace = time.Hour })
	before := time.Now()
	allocate := func() { r.Allocated(map[string][]string{"node-A-widget": {"node-A-widget"}}, "") }
	allocate()
	m.Unplug("/sys/devices/virtual/widget/widget0")
	confirm := func(asked time.Time, holding kubelet.Holding, want string) {
		t.Helper()
		r.confirm(asked, "node-A-widget", holding)
		r.waitOffer("example.org/widget", want)
	}
	const kept = "node-A-widget Unhealthy (gone)"
	confirm(time.Now(), kubelet.Free, kept)
	confirm(before, kubelet.Held, kept) // the kubelet's answer is about the previous pod
	confirm(time.Now(), kubelet.Free, kept)
	confirm(time.Now(), kubelet.Held, kept)
	allocate() // allocate the device to the next pod
	confirm(time.Now(), kubelet.Free, kept)
	r.Starting(map[string][]string{"node-A-widget": {"node-A-widget"}}) // this call comes late, because its pod is gone
	confirm(time.Now(), kubelet.Free, kept)
	confirm(time.Now(), kubelet.Named, kept) // the kubelet's answer may be about the previous pod
	confirm(time.Now(), kubelet.Free, kept)
	confirm(time.Now(), kubelet.Held, kept)
	before = time.Now()
	r.Starting(map[string][]string{"node-A-widget": {"node-A-widget"}})
	confirm(before, kubelet.Free, kept)
	confirm(time.Now(), kubelet.Unknown, kept)
	confirm(time.Now(), kubelet.Noted, kept)
	confirm(time.Now(), kubelet.Free, "") // the kubelet had listed the device and no longer does
}

// TestAllocationBeforeStart checks an allocation that the previous daemon answered seconds ago. The new daemon does
// not know this allocation.
func TestAllocationBeforeStart(t *testing.T) {
	const id = "node-A-widget"
	m, dir := udevtest.New(t, widget("widget0", "A")), t.TempDir()
	patient := func(o *inventory.Options) { o.Grace = time.Hour }
	r := start(t, m, dir, patient)
	r.Allocated(map[string][]string{id: {id}}, "")
	r.waitSnapshot("it is held", func(s *inventory.Snapshot) bool { return s.Find(id).Held() })
	r.end()
	r = start(t, m, dir, patient)
	r.waitOffer("example.org/widget", id+" Healthy")
	r.confirm(time.Now(), id, kubelet.Free)
	if s, err := r.Current(t.Context(), id); err != nil || !s.Held() {
		t.Error("it counts as free, and its pod may not be in the kubelet's books yet")
	}
}

// TestWorkAfterDisconnect checks that no work begins for a caller that has given up. Such a caller would never end the
// work.
func TestWorkAfterDisconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const id = "node-A-widget"
		m := udevtest.New(t, "F: /proc/sys/kernel/random/boot_id=1\n\n"+widget("widget0", "A"))
		r := start(t, m, t.TempDir())
		ended, end := context.WithCancel(t.Context())
		end()
		for range 20 {
			_, err := r.Begin(ended, id, lease.Prepare, "", unchecked)
			synctest.Wait()
			s, askErr := r.Current(t.Context(), id)
			if askErr != nil || s.Working() != (err == nil) {
				t.Fatalf("the error is %v, and the device is %v (%v)", err, s.Lease, askErr)
			}
			if err == nil {
				r.End([]string{id}, inventory.Outcome{})
			}
		}
	})
}

// TestPendingAllocate stops the kubelet during a call of Allocate, for any time. Until it continues, the ID must not leave
// the list, because the kubelet would crash. Only the next actions of the kubelet prove that it has finished the call.
func TestPendingAllocate(t *testing.T) {
	const id = "node-A-widget"
	holds := func(h kubelet.Holding) func(*running) {
		return func(r *running) { r.confirm(time.Now(), id, h) }
	}
	for _, test := range []struct {
		name string
		does func(*running)
		free bool
	}{
		{"nothing", func(*running) {}, false},
		{"it asks again for the same", func(r *running) { r.Allocated(map[string][]string{id: {id}}, "7") }, false},
		{"it allocates another", func(r *running) { r.Allocated(map[string][]string{"node-B-widget": {"node-B-widget"}}, "7") }, true},
		{"another process allocates", func(r *running) { r.Allocated(map[string][]string{"node-B-widget": {"node-B-widget"}}, "8") }, false},
		{"it asks again, and is refused", func(r *running) { r.Allocated(nil, "7") }, true},
		{"another process is refused", func(r *running) { r.Allocated(nil, "8") }, false},
		{"it answers", func(r *running) { r.Confirm(kubelet.Answer{Kubelet: "7"}) }, false},
		{"another process answers", func(r *running) { r.Confirm(kubelet.Answer{Kubelet: "8"}) }, true},
		{"its checkpoint names the pod of before", holds(kubelet.Named), false},
		{"it lists the pod", holds(kubelet.Held), true},
		{"it starts a container", func(r *running) { r.Starting(map[string][]string{id: {id}}) }, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, state := udevtest.New(t, "F: /proc/sys/kernel/random/boot_id=1\n\n"+widget("widget0", "A")+widget("widget1", "B")), t.TempDir()
				r := start(t, m, state)
				r.Allocated(map[string][]string{id: {id}}, "7")
				clock.Pass(time.Hour)
				r.end()
				m.Unplug("/sys/devices/virtual/widget/widget0")
				r = start(t, m, state)
				test.does(r)
				for range 3 {
					clock.Pass(time.Hour)
					holds(kubelet.Free)(r)
					synctest.Wait()
				}
				snapshot, _ := r.Snapshot()
				if left := snapshot.Find(id) == nil; left != test.free {
					t.Errorf("it has left the list: %t", left)
				}
			})
		})
	}
}

// TestSharesAreIndependent checks that a listed share of a device does not prove that another share is free.
func TestSharesAreIndependent(t *testing.T) {
	const id = "node-A-widget"
	r := start(t, udevtest.New(t, widget("widget0", "A")), "", func(o *inventory.Options) { o.Grace = time.Hour })
	for _, share := range []string{id + "::0", id + "::1"} {
		r.Allocated(map[string][]string{id: {share}}, "")
		if err := r.Alive(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.confirm(time.Now(), id, kubelet.Held)
	}
	r.confirm(time.Now(), id, kubelet.Free)
	if s, err := r.Current(t.Context(), id); err != nil || !s.Held() {
		t.Error("it counts as free, and the pod with the other share may not be in the kubelet's books yet")
	}
}

func TestCheckpointDevicesAreOffered(t *testing.T) {
	const lost, used = "node-gone-widget", "nvme-eui.00000000000000000000000000000001"
	m := udevtest.New(t, blank(1, "00000000000000000000000000000001", "E: ID_FS_USAGE=filesystem\nE: ID_FS_TYPE=ext4\n"))
	r := start(t, m, "", func(o *inventory.Options) {
		o.CheckpointDevices = map[string]map[string]kubelet.Known{
			"example.org/widget": {lost: {NUMANode: 1, As: []string{lost}}}, nvmeResource: {used: {As: []string{used}}},
			"example.org/other": {"x": {NUMANode: -1}},
		}
	})
	r.waitOffer("example.org/widget", lost+" Unhealthy (not found since metalplugd started)")
	s, _ := r.Snapshot()
	if node := s.Offer("example.org/widget").Find(lost).Device.NUMANode; node != 1 {
		t.Errorf("its NUMA node is %d, not the one that the kubelet knows", node)
	}
	r.waitOffer(nvmeResource, used+" Healthy") // the pod of the disk has created the file system
	r.waitOffer("example.org/other", "")
}

func TestHeldIDsStayUntilFree(t *testing.T) {
	const id, resource = "node-A-widget", "example.org/widget"
	r := start(t, udevtest.New(t, widget("widget0", "A")), "", func(o *inventory.Options) {
		o.CheckpointDevices = map[string]map[string]kubelet.Known{resource: {id: {As: []string{id + "::2"}}}}
		o.Grace = time.Nanosecond
	})
	as := func(what string, want ...string) {
		t.Helper()
		r.waitSnapshot(what, func(s *inventory.Snapshot) bool { return slices.Equal(s.Offer(resource).Find(id).HeldAs, want) })
	}
	as("what the kubelet remembers", id+"::2")
	r.Allocated(map[string][]string{id: {id + "::1", id + "::0"}}, "1")
	r.Inspect(id)
	as("what was allocated beside", id+"::0", id+"::1", id+"::2")
	before, _ := r.Snapshot()
	r.Confirm(kubelet.Answer{Kubelet: "2"})
	r.confirm(time.Now(), id, kubelet.Free)
	as("nothing")
	after, _ := r.Snapshot()
	if after.Offer(resource).Listed == before.Offer(resource).Listed {
		t.Error("the kubelet is not told")
	}
}

func TestFirstSnapshotWaitsForTheDevicesOfTheLastBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := t.TempDir()
		start(t, udevtest.New(t, widget("widget0", "A")), state).end()
		m := udevtest.New(t, "F: /proc/sys/kernel/random/boot_id=2\n\n")
		r := begin(t, m, state)
		<-time.After(time.Second)
		if s, _ := r.Snapshot(); s.Version != 0 {
			t.Error("the first snapshot does not wait for the device")
		}
		m.Plug(widget("widget0", "A"))
		r.ready()
		s, _ := r.Snapshot()
		if got := describeOffer(s.Offer("example.org/widget")); got != "node-A-widget Healthy" {
			t.Errorf("the first snapshot offers %q", got)
		}
	})
}

// TestNoLinkIsWrittenThrough puts a link in the place of the temporary file. The target of the link must not change.
func TestNoLinkIsWrittenThrough(t *testing.T) {
	state := t.TempDir()
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := errors.Join(os.WriteFile(elsewhere, []byte("precious"), 0o600),
		os.Symlink(elsewhere, filepath.Join(state, "state.json.new"))); err != nil {
		t.Fatal(err)
	}
	r := start(t, udevtest.New(t, widget("widget0", "A")), state)
	r.waitOffer("example.org/widget", "node-A-widget Healthy")
	r.end()
	if text, err := os.ReadFile(elsewhere); err != nil || string(text) != "precious" {
		t.Errorf("%q, %v", text, err)
	}
	info, err := os.Lstat(filepath.Join(state, "state.json"))
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestBurstIsOneSnapshotOrFew(t *testing.T) {
	m := udevtest.New(t, "")
	r := start(t, m, "")
	before, _ := r.Snapshot()
	var all strings.Builder
	const n = 500
	for i := range n {
		all.WriteString(widget(fmt.Sprintf("widget%d", i), fmt.Sprintf("S%d", i)))
	}
	m.Apply(all.String())
	s := r.waitSnapshot("all are there", func(s *inventory.Snapshot) bool {
		return len(s.Offer("example.org/widget").Devices) == n
	})
	if sent := s.Version - before.Version; sent > n/10 {
		t.Errorf("%d snapshots for a burst of %d events", sent, n)
	}
}

func TestHealthWithoutEventsIsPolled(t *testing.T) {
	const rxe = `P: /devices/virtual/infiniband/rxe0
E: SUBSYSTEM=infiniband
A: node_guid=5054:00ff:fe12:3456
A: ports/1/state=4: ACTIVE
A: ports/1/phys_state=5: LinkUp
A: ports/1/link_layer=Ethernet

P: /devices/virtual/infiniband_verbs/uverbs0
N: infiniband/uverbs0
E: SUBSYSTEM=infiniband_verbs
E: DEVNAME=/dev/infiniband/uverbs0
A: ibdev=rxe0

P: /devices/virtual/misc/rdma_cm
N: infiniband/rdma_cm
E: SUBSYSTEM=misc
E: DEVNAME=/dev/infiniband/rdma_cm
`
	const resource = "metalplug.io/infiniband"
	m := udevtest.New(t, rxe)
	r := start(t, m, "")
	r.waitOffer(resource, "infiniband-505400fffe123456 Healthy")
	m.Silently(strings.Replace(strings.Replace(rxe, "4: ACTIVE", "1: DOWN", 1), "5: LinkUp", "3: Disabled", 1))
	r.waitSnapshot("unhealthy", func(s *inventory.Snapshot) bool { return !s.Offer(resource).Devices[0].Healthy })
}

// If a reload adds the first rule of a class, the devices of that class must be polled.
func TestClassOfAReloadIsPolled(t *testing.T) {
	every := device.NVMe.Every
	device.NVMe.Every = time.Millisecond
	m := udevtest.New(t, blank(1, "0011", ""))
	r := start(t, m, "", func(o *inventory.Options) { o.Rules = rules[:1] })
	t.Cleanup(func() { // runs after the inventory has stopped
		r.end()
		device.NVMe.Every = every
	})
	<-r.SetRules(rules, nil)
	healthy := func(want bool) func(*inventory.Snapshot) bool {
		return func(s *inventory.Snapshot) bool {
			devices := s.Offer(nvmeResource).Devices
			return len(devices) == 1 && devices[0].Healthy == want
		}
	}
	r.waitSnapshot("the drive", healthy(true))
	state := filepath.Join(m.Root(), "sys/devices/pci0000:00/0000:00:01.0/nvme/nvme1/state")
	if err := os.WriteFile(state, []byte("dead\n"), 0o644); err != nil { // no event reports this change
		t.Fatal(err)
	}
	r.waitSnapshot("its end", healthy(false))
}
