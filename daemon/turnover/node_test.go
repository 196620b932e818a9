// SPDX-License-Identifier: Apache-2.0

package turnover_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/statefile"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/daemon/turnover"
	"github.com/metalplug/metalplug/daemon/unit"
	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/integration/udevtest"
)

const (
	diskResource   = "example.org/disk"
	widgetResource = "example.org/widget"
	setResource    = "example.org/set"
)

// node is a simulated machine with its inventory and turnover. Stories use both only through this file.
type node struct {
	t *testing.T
	*helpers
	machine   *udevtest.Machine
	devices   map[string]string // recordings by name
	stats     map[string]string // the kernel's counters of the disks that were written to, by name
	mounts    string
	boot      string
	state     string          // the state directory
	resources []string        // names of resources; the first one takes the disks, the others match no device
	bundle    *device.Members // bundles of widgets and disks, or nil
	init      string
	audit     *audit.Log
	inventory *inventory.Inventory
	turnover  *turnover.Turnover
	stop      func()            // stops inventory and turnover; nil while they do not run
	given     map[string]string // IDs that pods got, by device name
	took      time.Duration     // duration of the last start
	lists     uint64            // number of lists that the kubelet had received
	behind    sync.WaitGroup    // commands that "go" has started
	errs      chan error
}

func newNode(t *testing.T) *node {
	n := &node{
		t: t, helpers: newHelpers(), devices: make(map[string]string), stats: make(map[string]string), given: make(map[string]string), boot: "1", state: t.TempDir(),
		resources: []string{diskResource}, errs: make(chan error, 16),
	}
	_ = n.setCare("")
	n.root = func() string { return n.machine.Root() }
	n.selects = func() string {
		n.mu.Lock()
		defer n.mu.Unlock()
		return slices.Concat(n.resources, []string{""})[0]
	}
	n.machine = udevtest.New(t, n.text())
	t.Cleanup(n.end)
	return n
}

// text returns the recording of the machine.
func (n *node) text() string {
	text := fmt.Sprintf("F: /proc/self/mountinfo=%s\nF: /proc/sys/kernel/random/boot_id=%s\n\n", n.mounts, n.boot)
	for _, name := range slices.Sorted(maps.Keys(n.devices)) {
		text += strings.Replace(n.devices[name], "A: size", n.stats[name]+"A: size", 1)
	}
	return text
}

// recordingOf returns the recording of the device nvmeN, widget0, vdb, vfio, or set. The device "set" combines the nodes of
// vfio.
func recordingOf(name string, is map[string]string) (string, error) {
	is["seq"] = cmp.Or(is["seq"], "7")
	more := ""
	if is["fs"] != "" {
		more += "E: ID_FS_USAGE=filesystem\nE: ID_FS_TYPE=" + is["fs"] + "\n"
	}
	if is["holder"] != "" {
		more += "A: holders/" + is["holder"] + "=\n"
	}
	if is["device-serial"] != "" {
		more += "A: device/serial=" + is["device-serial"] + "\n"
	}
	if is["iostats"] != "" {
		more += "A: queue/iostats=" + is["iostats"] + "\n"
	}
	if is["seq"] != "none" {
		more += "A: diskseq=" + is["seq"] + "\n"
	}
	switch name {
	case "widget0":
		return "P: /devices/virtual/widget/widget0\nN: widget0\nE: DEVNAME=/dev/widget0\nE: SUBSYSTEM=widget\n" +
			"E: ID_SERIAL=A\nE: ID_SERIAL_SHORT=A\nE: MAJOR=240\nE: MINOR=0\n\n", nil
	case "vdb": // a disk that only its slot identifies, because it has no serial number
		return "P: /devices/pci0000:00/0000:00:05.0/virtio1/block/vdb\nN: vdb\nE: SUBSYSTEM=block\nE: DEVTYPE=disk\nE: DEVNAME=/dev/vdb\n" +
			"E: MAJOR=254\nE: MINOR=16\nE: ID_PATH=pci-0000:00:05.0\nA: size=1024\nA: ro=0\nA: dev=254:16\n" + more + "\n", nil
	case "vfio", "set":
		return "P: /devices/pci0000:6a/0000:6b:00.1\nE: SUBSYSTEM=pci\nE: DRIVER=vfio-pci\nE: PCI_CLASS=B4000\nE: PCI_ID=8086:4941\n" +
			"E: PCI_SLOT_NAME=0000:6b:00.1\nA: reset=\nL: driver=../../../bus/pci/drivers/vfio-pci\n" +
			"L: iommu_group=../../../kernel/iommu_groups/120\n\n" +
			"P: /devices/virtual/vfio/120\nN: vfio/120\nE: DEVNAME=/dev/vfio/120\nE: SUBSYSTEM=vfio\nE: MAJOR=511\nE: MINOR=0\nA: dev=511:0\n\n" +
			"P: /devices/virtual/misc/vfio\nN: vfio/vfio\nE: DEVNAME=/dev/vfio/vfio\nE: SUBSYSTEM=misc\nE: MAJOR=10\nE: MINOR=196\n\n", nil
	}
	var number, namespaces int
	if _, err := fmt.Sscanf(name, "nvme%d", &number); err != nil {
		return "", fmt.Errorf("unknown device %s", name)
	}
	fmt.Sscan(cmp.Or(is["ns"], "1"), &namespaces)
	text := fmt.Sprintf("P: %[1]s\nE: SUBSYSTEM=pci\nE: DRIVER=nvme\n\nP: %[1]s/nvme/%[2]s\nE: SUBSYSTEM=nvme\nA: state=live\n"+
		"A: transport=pcie\nA: serial=%[3]s\n\n", pathOf(name), name, cmp.Or(is["serial"], fmt.Sprintf("S%d", number)))
	for ns := 1; ns <= namespaces; ns++ {
		text += fmt.Sprintf("P: %[1]s/nvme/%[2]s/%[2]sn%[3]d\nN: %[2]sn%[3]d\nE: SUBSYSTEM=block\nE: DEVTYPE=disk\nE: DEVNAME=/dev/%[2]sn%[3]d\n"+
			"E: MAJOR=259\nE: MINOR=%[4]d\n%[5]sA: wwid=%[6]s\nA: nsid=%[3]d\nA: size=1024\nA: ro=0\nA: hidden=0\n\n",
			pathOf(name), name, ns, 16*number+ns, more, cmp.Or(is["wwid"], fmt.Sprintf("eui.%d%d", number, ns)))
	}
	return text, nil
}

// pathOf returns the path of an NVMe controller's PCI function in a recording.
func pathOf(name string) string {
	return fmt.Sprintf("/devices/pci0000:00/0000:00:%02s.0", strings.TrimPrefix(name, "nvme"))
}

// wrote sets the kernel's count of written sectors of a disk, if the disk is present.
func (n *node) wrote(name, sectors string) {
	at := "/sys/devices/pci0000:00/0000:00:05.0/virtio1/block/vdb"
	if end := strings.LastIndex(name, "n"); end > 0 {
		at = "/sys" + pathOf(name[:end]) + "/nvme/" + name[:end] + "/" + name
	}
	if _, err := os.Stat(n.machine.Root() + at); err == nil {
		stat := fmt.Sprintf("9 0 72 1 %[1]s 0 %[1]s 1 0 2 2 0 0 0 0 0 0", sectors)
		n.machine.SetAttr(at, "stat", stat)
		n.stats[strings.TrimSuffix(name, "n1")] = "A: stat=" + stat + "\n"
	}
}

// idOf returns the ID of a device by the name of its node.
func idOf(name string) string {
	switch name {
	case "widget0":
		return "node-A-widget"
	case "vdb":
		return "node-pci-0000:00:05.0"
	case "120":
		return "node-vfio-0000:6b:00.1"
	case "set":
		return "group-" + strings.Replace(setResource, "/", ":", 1)
	}
	return "nvme-eui." + strings.ReplaceAll(strings.TrimPrefix(name, "nvme"), "n", "")
}

// status returns the device with this node name, or the last device that had it.
func (n *node) status(name string) (*inventory.Status, error) {
	snapshot, _ := n.inventory.Snapshot()
	for s := range snapshot.All() {
		if s.Present && path.Base(s.Device.SysPath) == name && idOf("set") != s.Device.ID {
			return s, nil
		}
	}
	if s := snapshot.Find(idOf(name)); s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("no device %s", name)
}

// setCare sets the configuration of the resource, in the form "method=auto scrub=zero when=both timeout=1h start=UNIT
// release=UNIT open=true".
func (n *node) setCare(words string) error {
	care := config.Resource{Reset: config.ResourceReset{Method: config.None, Scrub: config.None, When: config.WhenBoth, Timeout: 20 * time.Second}}
	for word := range strings.FieldsSeq(words) {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "method":
			care.Reset.Method = value
		case "scrub":
			care.Reset.Scrub = value
		case "when":
			if care.Reset.When = value; value != config.WhenStart {
				care.Reset.Timeout = time.Hour
			}
		case "timeout":
			care.Reset.Timeout, _ = time.ParseDuration(value)
		case "start":
			care.Units.Start = value
		case "release":
			care.Units.Release = value
		case "open":
			care.AllowInUse = true
		case "shares":
			care.Shares = 2
		default:
			return fmt.Errorf("unknown key %s", key)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.care = care
	return nil
}

func (n *node) rules() []device.Rule {
	n.mu.Lock()
	defer n.mu.Unlock()
	rule := n.care.Rule()
	rule.Scrub, rule.Init = "", n.init
	var all []device.Rule
	add := func(resource string, class *device.Class, match map[string]string) *device.Rule {
		rule.Resource, rule.Class, rule.Match = resource, class, match
		all = append(all, rule)
		return &all[len(all)-1]
	}
	if n.devices["set"] != "" {
		add(setResource, &device.Generic, nil).Group = &device.Group{Nodes: []string{"/dev/vfio/120", "/dev/vfio/vfio"}}
	}
	for i, resource := range n.resources {
		var match map[string]string
		if i > 0 {
			match = map[string]string{"DEVNAME": "/dev/nothing"}
		}
		add(resource, &device.NVMe, match)
	}
	add(widgetResource, &device.Generic, map[string]string{"DEVNAME": "/dev/widget0|/dev/vfio/120|/dev/vdb"})
	if n.bundle != nil {
		all = append(all, device.Rule{Resource: "example.org/pair", Class: &device.Bundle, Bundle: n.bundle})
	}
	return all
}

// careOf returns the configuration of a resource. A resource that matches no device has no vendor units.
func (n *node) careOf(resource string) (config.Resource, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	care := n.care
	if care.Name = resource; slices.Contains(n.resources[min(1, len(n.resources)):], resource) {
		care.Units = config.Units{}
	}
	return care, slices.Contains(append(n.resources, widgetResource, setResource), resource)
}

// unit simulates the run of a vendor unit. The commands "fails" and "during" refer to it by its template.
func (n *node) unit(ctx context.Context, resource, stage, id string) error {
	care, _ := n.careOf(resource)
	template := map[string]string{unit.Init: n.init, unit.Start: care.Units.Start, unit.Release: care.Units.Release}[stage]
	if template == "" {
		return fmt.Errorf("%s has no unit for this stage", resource)
	}
	return n.recordCall(ctx, template, template+" "+id)
}

// begin starts inventory and turnover with the content of the state directory.
func (n *node) begin() {
	log := slog.New(slog.NewTextHandler(n.t.Output(), nil))
	host := &device.Host{Tree: sysfs.At(n.machine.Root()), Touch: n.touch()}
	checkpointed := make(map[string]map[string]kubelet.Known)
	for id, pods := range n.owners {
		resource := widgetResource
		var members []kubelet.Member
		switch {
		case strings.HasPrefix(id, "nvme-"):
			resource = n.resources[0]
		case strings.HasPrefix(id, "bundle-"):
			resource, members = "example.org/pair", []kubelet.Member{{Resource: widgetResource, ID: "node-A-widget"}, {Resource: n.resources[0], ID: "nvme-eui.11"}}
		}
		if checkpointed[resource] == nil {
			checkpointed[resource] = make(map[string]kubelet.Known)
		}
		checkpointed[resource][id] = kubelet.Known{NUMANode: -1, As: []string{id}, Pods: pods, Members: members}
	}
	n.inventory = inventory.New(inventory.Options{
		Source: n.machine, Host: host, Rules: n.rules(), Log: log, Settle: time.Second, Grace: time.Nanosecond,
		Store: statefile.Open(n.state, log), CheckpointDevices: checkpointed,
	})
	n.audit = audit.Open(n.state, log)
	n.turnover = &turnover.Turnover{
		Inventory: n.inventory, Host: host, Log: log, Owners: n.ownersNow, Unit: n.unit, Configured: n.careOf, Running: n.hasProcess, Audit: n.audit,
	}
	ctx, cancel := context.WithCancel(context.Background())
	var both sync.WaitGroup
	run := func(what string, f func() error) {
		both.Go(func() {
			if err := f(); err != nil {
				n.t.Errorf("%s: %v", what, err)
			}
		})
	}
	run("inventory", func() error { return n.inventory.Run(ctx) })
	run("turnover", func() error { return n.turnover.Run(ctx, func() {}) })
	closeAudit := n.audit.Close
	n.stop = func() {
		cancel()
		both.Wait()
		closeAudit()
	}
	<-n.inventory.Ready()
}

// end stops inventory and turnover, if they run.
func (n *node) end() {
	if n.stop != nil {
		n.stop()
		n.stop = nil
	}
}

// crash simulates a crash and restarts with the state that is on disk at this moment.
func (n *node) crash() error {
	if err := n.cut(); err != nil {
		return err
	}
	n.begin()
	return nil
}

// cut simulates a power failure. Only the state that is on disk at this moment survives.
func (n *node) cut() error {
	left := n.t.TempDir()
	if err := os.CopyFS(left, os.DirFS(n.state)); err != nil {
		return err
	}
	n.end()
	n.state = left
	return nil
}

// allocate gives a pod devices, as the plugin's Allocate does.
func (n *node) allocate(pod string, names ...string) error {
	as := make(map[string][]string)
	for _, name := range names {
		s, err := n.status(name)
		switch {
		case err != nil:
			return err
		case s.Resource == "":
			return fmt.Errorf("%s is not offered", name)
		case !s.Healthy:
			return errors.New(s.Reason)
		case s.Barred != "":
			n.inventory.Released([]string{s.Device.ID})
			return errors.New("left by the last pod")
		}
		as[s.Device.ID], n.given[name] = []string{s.Name()}, s.Device.ID
		if n.care.Shares > 1 {
			as[s.Device.ID] = []string{s.Device.ID + "::0"}
		}
	}
	n.mu.Lock()
	for _, names := range as {
		n.owners[names[0]] = []string{pod} // the kubelet has taken the device from the previous pod
	}
	n.mu.Unlock()
	n.inventory.Allocated(as, "")
	n.mu.Lock()
	n.inventory.Confirm(kubelet.Answer{Written: time.Now(), Booked: maps.Clone(n.owners)})
	n.mu.Unlock()
	return nil
}

// start prepares devices for a container, as the plugin's PreStartContainer does.
func (n *node) start(ctx context.Context, names ...string) error {
	began := time.Now()
	defer func() { n.mu.Lock(); n.took = time.Since(began); n.mu.Unlock() }()
	snapshot, _ := n.inventory.Snapshot()
	devices := make([]*inventory.Status, len(names))
	for i, name := range names {
		if devices[i] = snapshot.Find(cmp.Or(n.given[name], idOf(name))); devices[i] == nil {
			return fmt.Errorf("no device %s", name)
		}
	}
	return n.turnover.Start(ctx, devices)
}

// passAnswer passes an answer of the kubelet about a device to the inventory.
func (n *node) passAnswer(name string, h kubelet.Holding) error {
	clock.Pass(time.Millisecond) // the release must be later than the allocation
	s, err := n.status(name)
	if err == nil {
		n.mu.Lock()
		n.inventory.Confirm(kubelet.Answer{Written: time.Now(), Booked: maps.Clone(n.owners)})
		n.mu.Unlock()
		n.inventory.Confirm(kubelet.Answer{Asked: time.Now(), Holdings: map[string]kubelet.Holding{s.Name(): h}})
	}
	return err
}

// endPods ends the pods of a device, and passes the kubelet's new answer to the inventory.
func (n *node) endPods(name string) error {
	s, err := n.status(name)
	if err != nil {
		return err
	}
	n.mu.Lock()
	delete(n.owners, s.Name())
	n.mu.Unlock()
	return n.passAnswer(name, kubelet.Free)
}
