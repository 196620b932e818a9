// SPDX-License-Identifier: Apache-2.0

package turnover_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/daemon/turnover"
	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/integration/udevtest"
)

const (
	diskResource   = "example.org/disk"
	widgetResource = "example.org/widget"
)

// bench is a machine with disks, its inventory, a turnover, and helpers of whom the test knows what they were asked.
type bench struct {
	t         *testing.T
	machine   *udevtest.Machine
	text      string
	state     string // the directory
	rule      device.Rule
	care      turnover.Care
	init      string // the unit that is to initialise devices
	inventory *inventory.Inventory
	turnover  *turnover.Turnover
	stop      func()

	mu         sync.Mutex
	touched    []string            // what the helpers were asked to do, in order
	unread     []device.Holder     // processes that the helper cannot read
	looks      map[string]int      // how often they were asked for what changes nothing: "probe nvme1n1", "holders nvme1n1"
	content    map[string]string   // of disks, by name
	hidden     map[string]int64    // of disks, by name: where there is data that only a full read finds
	surveyed   []string            // what was read of disks, in order
	size       int64               // of each disk
	open       map[string][]string // by name: the pods that have a device open; "" is this host
	owners     map[string][]string // by ID: what the kubelet's checkpoint says
	fail       map[string]error    // by "holders", "probe", "reset", "erase" and units
	during     map[string]func(ctx context.Context) error
	auditing   bool // from the next start on
	closeAudit func()
}

// mounts of which there are none.
const mounts = "F: /proc/self/mountinfo=\n\n"

// disk is the recording of an NVMe controller with its namespaces.
func disk(n, namespaces, appearance int) string {
	pci := fmt.Sprintf("/devices/pci0000:00/0000:00:%02x.0", n)
	text := fmt.Sprintf("P: %[1]s\nE: SUBSYSTEM=pci\nE: DRIVER=nvme\n\n"+
		"P: %[1]s/nvme/nvme%[2]d\nE: SUBSYSTEM=nvme\nA: state=live\nA: transport=pcie\nA: serial=S%[2]d\n\n", pci, n)
	for ns := 1; ns <= namespaces; ns++ {
		text += fmt.Sprintf("P: %[1]s/nvme/nvme%[2]d/nvme%[2]dn%[3]d\nN: nvme%[2]dn%[3]d\nE: SUBSYSTEM=block\nE: DEVTYPE=disk\n"+
			"E: DEVNAME=/dev/nvme%[2]dn%[3]d\nE: MAJOR=259\nE: MINOR=%[4]d\nA: wwid=eui.%[2]d%[3]d\nA: diskseq=%[5]d\nA: nsid=%[3]d\n"+
			"A: size=1024\nA: ro=0\nA: hidden=0\n\n", pci, n, ns, 16*n+ns, appearance)
	}
	return text
}

const widgets = "P: /devices/virtual/widget/widget0\nN: widget0\nE: DEVNAME=/dev/widget0\nE: SUBSYSTEM=widget\n" +
	"E: ID_SERIAL=A\nE: ID_SERIAL_SHORT=A\nE: MAJOR=240\nE: MINOR=0\n\n"

// group is a VFIO group with one function, which can be reset.
const group = "P: /devices/pci0000:6a/0000:6b:00.1\nE: SUBSYSTEM=pci\nE: DRIVER=vfio-pci\nE: PCI_CLASS=B4000\nE: PCI_ID=8086:4941\n" +
	"E: PCI_SLOT_NAME=0000:6b:00.1\nA: reset=\nL: driver=../../../bus/pci/drivers/vfio-pci\n" +
	"L: iommu_group=../../../kernel/iommu_groups/120\n\n" +
	"P: /devices/virtual/vfio/120\nN: vfio/120\nE: DEVNAME=/dev/vfio/120\nE: SUBSYSTEM=vfio\nE: MAJOR=511\nE: MINOR=0\nA: dev=511:0\n\n" +
	"P: /devices/virtual/misc/vfio\nN: vfio/vfio\nE: DEVNAME=/dev/vfio/vfio\nE: SUBSYSTEM=misc\nE: MAJOR=10\nE: MINOR=196\n\n"

// idOf returns the ID of a device by the name of its node.
func idOf(name string) string {
	switch name {
	case "widget0":
		return "node-A-widget"
	case "120":
		return "node-vfio-0000:6b:00.1"
	}
	return "nvme-eui." + strings.ReplaceAll(strings.TrimPrefix(name, "nvme"), "n", "")
}

// newBench must be called in a bubble of synctest.
func newBench(t *testing.T, text string, care turnover.Care, init ...string) *bench {
	b := &bench{
		init: strings.Join(init, ""),
		t:    t, machine: udevtest.New(t, mounts+text), text: mounts + text, state: t.TempDir(),
		looks: make(map[string]int), content: make(map[string]string), hidden: make(map[string]int64), size: diskSize, open: make(map[string][]string), owners: make(map[string][]string),
		fail: make(map[string]error), during: make(map[string]func(context.Context) error),
	}
	b.set(care)
	b.begin()
	t.Cleanup(func() { b.stop() })
	synctest.Wait() // all disks are read by then
	clock.Pass(time.Second)
	b.reads()
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.looks)
	return b
}

// set makes a care that of both resources, as the daemon does with what is configured.
func (b *bench) set(care turnover.Care) {
	if care.Timeout == 0 {
		care.Timeout = 20 * time.Second
	}
	b.mu.Lock()
	b.care = care
	b.mu.Unlock()
	acts := care.Method != turnover.None || care.Scrub != turnover.None
	b.rule = device.Rule{
		AllowInUse: care.Open, ErasedAtStart: care.AtStart && care.Scrub != turnover.None,
		ClearedAtRelease: care.AtRelease && acts || care.Units.Release != "", Init: b.init,
	}
}

// careOf is what is configured for a resource.
func (b *bench) careOf(resource string) (turnover.Care, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.care, resource == diskResource || resource == widgetResource
}

func (b *bench) rules() []device.Rule {
	disks, nodes := b.rule, b.rule
	disks.Resource, disks.Class = diskResource, &device.NVMe
	nodes.Resource, nodes.Class, nodes.Match = widgetResource, &device.Generic, map[string]string{"SUBSYSTEM": "widget|vfio"}
	return []device.Rule{disks, nodes}
}

func (b *bench) begin() {
	log := slog.New(slog.NewTextHandler(b.t.Output(), nil))
	host := &device.Host{
		Tree:  sysfs.At(b.machine.Root()),
		Touch: device.Touch{Probe: b.probe, Prepare: b.prepare, Survey: b.survey, Holders: b.holders},
	}
	remembered := map[string]map[string]inventory.Known{diskResource: {}, widgetResource: {}}
	for id, pods := range b.owners {
		resource := diskResource
		if strings.HasPrefix(id, "node-") {
			resource = widgetResource
		}
		if len(pods) > 0 {
			remembered[resource][id] = inventory.Known{NUMANode: -1, As: []string{id}, Pods: pods}
		}
	}
	b.inventory = inventory.New(inventory.Options{
		Source: b.machine, Host: host, Rules: b.rules(), Log: log, Settle: time.Second, Grace: time.Nanosecond,
		Store: inventory.OpenStore(b.state, log), Remembered: remembered,
	})
	b.turnover = &turnover.Turnover{Inventory: b.inventory, Host: host, Log: log, Owners: b.ownersNow, Unit: b.unit, Care: b.careOf}
	if b.auditing {
		b.turnover.Audit = audit.Open(b.state, log)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var both sync.WaitGroup
	both.Go(func() {
		if err := b.inventory.Run(ctx); err != nil {
			b.t.Errorf("inventory: %v", err)
		}
	})
	both.Go(func() {
		if err := b.turnover.Run(ctx, func() {}); err != nil {
			b.t.Errorf("turnover: %v", err)
		}
	})
	b.closeAudit = sync.OnceFunc(b.turnover.Audit.Close)
	b.stop = func() {
		cancel()
		both.Wait()
		b.closeAudit()
	}
	<-b.inventory.Ready()
}

// crash ends everything and begins anew with what is on disk at this moment.
func (b *bench) crash() {
	left := b.t.TempDir()
	if err := os.CopyFS(left, os.DirFS(b.state)); err != nil {
		b.t.Fatal(err)
	}
	b.stop()
	b.state = left
	b.begin()
}

// hook notes what a helper was asked for, and does what the test wants to happen meanwhile.
func (b *bench) hook(ctx context.Context, what, note string) error {
	b.mu.Lock()
	if note != "" {
		b.touched = append(b.touched, note)
	}
	err, during := b.fail[what], b.during[what]
	b.mu.Unlock()
	if during != nil {
		return during(ctx)
	}
	return err
}

// looked counts what a helper was asked for that changes nothing.
func (b *bench) looked(what string, at ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range at {
		b.looks[what+" "+path.Base(name)]++
	}
}

// lookedAt returns how often a disk was probed, and looked for who has it open, since it was last called.
func (b *bench) lookedAt(name string) (probes, holders int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	probe, holder := "probe "+name, "holders "+name
	probes, holders = b.looks[probe], b.looks[holder]
	delete(b.looks, probe)
	delete(b.looks, holder)
	return probes, holders
}

func (b *bench) probe(ctx context.Context, t device.Target, held bool) (device.Reading, error) {
	b.looked("probe", t.SysPath)
	if err := b.hook(ctx, "probe", ""); err != nil || held {
		return device.Reading{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	content := b.content[path.Base(t.SysPath)]
	return device.Reading{Content: content, Fingerprint: printOf(content), Size: b.size}, nil
}

// diskSize is the size of each disk.
const diskSize = 1024 * 512

// survey reads a quarter of a disk.
func (b *bench) survey(ctx context.Context, t device.Target, from int64) (device.Surveyed, error) {
	b.looked("survey", t.SysPath)
	if err := b.hook(ctx, "survey", ""); err != nil {
		return device.Surveyed{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.surveyed = append(b.surveyed, fmt.Sprintf("%s %d", path.Base(t.SysPath), from))
	s := device.Surveyed{Read: min(from+b.size/4, b.size), Size: b.size}
	if at := b.hidden[path.Base(t.SysPath)]; at > 0 && at >= from && at < s.Read {
		s.Read, s.Content = at, fmt.Sprintf("unknown data at byte %d", at)
	}
	return s, nil
}

// grow gives each disk another size.
func (b *bench) grow(size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.size = size
}

// hide lets a disk have data at a byte that only a full read finds; 0: none.
func (b *bench) hide(name string, at int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hidden[name] = at
}

// reads returns which parts of disks were read since it was last called: "nvme1n1 0, nvme1n1 131072".
func (b *bench) reads() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	read := strings.Join(b.surveyed, ", ")
	b.surveyed = nil
	return read
}

// printOf is what the helper would know contents by.
func printOf(content string) string {
	if content == "" {
		return ""
	}
	h := fnv.New64a()
	h.Write([]byte(content))
	return fmt.Sprintf("5eed:%x", h.Sum64())
}

// guarded refuses what the helper refuses.
func (b *bench) guarded(t device.Target, w device.Work) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range t.Identity {
		now, err := os.ReadFile(filepath.Join(b.machine.Root(), t.SysPath, a.Name))
		if err != nil {
			return device.ErrGone
		}
		if strings.TrimSpace(string(now)) != a.Value {
			return fmt.Errorf("%w: another device than meant", turnover.ErrUnfit)
		}
	}
	content := b.content[path.Base(t.SysPath)]
	switch {
	case w.Blank && content != "":
		return fmt.Errorf("%w: %w: %s is on it", turnover.ErrUnfit, device.ErrForeign, content)
	case len(t.Identity) == 0:
		return fmt.Errorf("%w: nothing identifies the device", turnover.ErrUnfit)
	case w.Scrub != "" && !w.Tenant && !w.ByHand:
		return fmt.Errorf("%w: an erasure for nobody", turnover.ErrUnfit)
	case content == "", w.ByHand && w.Scrub != "" && (t.Fingerprint == "" || t.Fingerprint == printOf(content)):
	case !w.Tenant:
		return fmt.Errorf("%w: %w: %s is on it, and no pod's", turnover.ErrUnfit, device.ErrForeign, content)
	case t.Fingerprint != "" && t.Fingerprint != printOf(content):
		return fmt.Errorf("%w: %w: %s is on it", turnover.ErrUnfit, device.ErrForeign, content)
	}
	return nil
}

// prepare is the helper's: reset, then erase or prove blank. A disk that has come anew is the same medium if what is on it
// is the same.
func (b *bench) prepare(ctx context.Context, t device.Target, w device.Work) (p device.Prepared, err error) {
	name := path.Base(t.SysPath)
	if w.Resource == "" {
		return p, fmt.Errorf("%w: no resource is named", turnover.ErrUnfit)
	}
	if err := b.guarded(t, w); err != nil {
		return p, err
	}
	b.mu.Lock()
	before := b.content[name]
	b.mu.Unlock()
	if w.Method != "" {
		note := fmt.Sprintf("reset %s %s", name, w.Method)
		for _, other := range t.Together {
			note += " with " + path.Base(other)
		}
		if err := b.hook(ctx, "reset", note); err != nil {
			return p, err
		}
		t.Identity = slices.DeleteFunc(slices.Clone(t.Identity), func(a device.Attribute) bool { return a.Name == "diskseq" })
		if err := b.guarded(t, w); err != nil {
			return p, err
		}
	}
	now, _ := os.ReadFile(filepath.Join(b.machine.Root(), t.SysPath, "diskseq")) // a VFIO group has none
	b.mu.Lock()
	same := b.content[name] == before
	b.mu.Unlock()
	if same {
		p.Appearance = strings.TrimSpace(string(now))
	}
	if w.Scrub == "" {
		p.Done, p.Size = "reset", b.size
		return p, nil
	}
	if !same {
		return device.Prepared{}, errors.New("another medium may be in its place")
	}
	if err := b.hook(ctx, "erase", fmt.Sprintf("erase %s %s", name, w.Scrub)); err != nil {
		return device.Prepared{}, err
	}
	if after, _ := os.ReadFile(filepath.Join(b.machine.Root(), t.SysPath, "diskseq")); string(after) != string(now) {
		return device.Prepared{}, errors.New("it has not come back")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.content[name], b.hidden[name] = "", 0
	p.Done, p.Erased, p.Size = "erased", true, b.size
	return p, nil
}

// unit runs a vendor's step. It is a helper like the others, by the name of its template.
func (b *bench) unit(ctx context.Context, step turnover.Step) error {
	return b.hook(ctx, step.Unit, fmt.Sprintf("unit %s %s", step.Unit, step.Device))
}

func (b *bench) holders(ctx context.Context, nodes []string) (all []device.Holder, err error) {
	b.looked("holders", nodes...)
	if err := b.hook(ctx, "holders", ""); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, node := range nodes {
		for _, pod := range b.open[path.Base(node)] {
			all = append(all, device.Holder{PID: 7, Command: "dd", Node: node, PodUID: pod})
		}
	}
	return append(all, b.unread...), nil
}

func (b *bench) ownersNow() (map[string][]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make(map[string][]string)
	for id, pods := range b.owners {
		all[id] = slices.Clone(pods)
	}
	return all, b.fail["owners"]
}

// did returns what the helpers were asked to do since it was last called.
func (b *bench) did() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	done := strings.Join(b.touched, ", ")
	b.touched = nil
	return done
}

func resourceOf(name string) string {
	if name == "widget0" {
		return widgetResource
	}
	return diskResource
}

// status returns how devices stand once everything has come to rest.
func (b *bench) status(name string) *inventory.Status {
	synctest.Wait()
	snapshot, _ := b.inventory.Snapshot()
	s := snapshot.Find(idOf(name))
	if s == nil {
		b.t.Fatalf("no %s", name)
	}
	return s
}

var errRefused = errors.New("refused")

// allocate gives a pod devices, as the plugin's Allocate does.
func (b *bench) allocate(pod string, names ...string) error {
	snapshot, _ := b.inventory.Snapshot()
	as := make(map[string][]string)
	for _, name := range names {
		s := snapshot.Find(idOf(name))
		switch {
		case s == nil || s.Resource == "":
			return fmt.Errorf("%w: %s is not offered", errRefused, name)
		case !s.Healthy:
			return fmt.Errorf("%w: %s", errRefused, s.Reason)
		case s.Uncleared, s.Used != "" && !s.Erasable:
			b.inventory.Released([]string{idOf(name)})
			return fmt.Errorf("%w: left by the last pod", errRefused)
		}
		as[idOf(name)] = []string{idOf(name)}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range as {
		b.owners[id] = []string{pod} // the kubelet has taken it from whoever had it
	}
	b.inventory.Allocated(as)
	return nil
}

// start announces the start of a container, as the plugin's PreStartContainer does.
func (b *bench) start(names ...string) error {
	snapshot, _ := b.inventory.Snapshot()
	var devices []*inventory.Status
	for _, name := range names {
		devices = append(devices, snapshot.Find(idOf(name)))
	}
	return b.turnover.Start(context.Background(), resourceOf(names[0]), devices)
}

// free lets the kubelet have no pod any more that has a device.
func (b *bench) free(name string) {
	clock.Pass(time.Millisecond) // since it was allocated
	b.mu.Lock()
	delete(b.owners, idOf(name))
	b.mu.Unlock()
	b.inventory.Confirm(time.Now(), map[string]inventory.Holding{idOf(name): inventory.Free})
}

// write lets a disk have contents; empty: none. The kernel tells nobody.
func (b *bench) write(name, content string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.content[name] = content
}

// opens says which pods have a device open.
func (b *bench) opens(name string, pods ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open[name] = pods
}

// fails lets a helper fail; nil: no more.
func (b *bench) fails(what string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail[what] = err
}

// meanwhile has something done while a helper is at work.
func (b *bench) meanwhile(what string, do func(context.Context) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.during[what] = do
}

// want compares what was done since the last call, and how a device stands.
func (b *bench) want(name, did, reason string) {
	b.t.Helper()
	s := b.status(name)
	if got := b.did(); got != did {
		b.t.Errorf("the helpers were asked for %q, want %q", got, did)
	}
	if s.Reason != reason || s.Healthy != (reason == "") {
		b.t.Errorf("%s is healthy: %t (%s), want the reason %q", name, s.Healthy, s.Reason, reason)
	}
}

// ok ends the test on an error.
func (b *bench) ok(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// refused wants an error with a text in it.
func (b *bench) refused(err error, text string) {
	b.t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		b.t.Errorf("%v, want an error with %q", err, text)
	}
}
