// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/turnover"
)

// Resources of a sequence.
const (
	widgetResource = "example.org/widget"
	diskResource   = "metalplug.io/nvme"
	bundleResource = "example.org/bundle"
)

// disk is an NVMe namespace, plugged in or not.
type disk struct {
	serial   string
	slot     int    // slot of the controller, or 0 while the disk is unplugged
	pulled   int    // the slot from which it is being unplugged, or 0; a process that has inspected the slot before still sees the disk there
	sequence int    // diskseq of this appearance
	sick     bool   // the controller of the disk is dead
	falls    int    // number of times that the disk became unhealthy
	content  string // pod that has written to the disk since the last erasure, or empty
	moved    bool   // the disk was plugged in again after a write, so its data may be from anywhere
	unknown  bool   // a pod got the disk without a record in the daemon, so the origin of older data is unknown
	user     string // pod that has the disk open
	failing  bool   // erasures of the disk fail
	failed   bool   // an attempt to erase it failed
}

func (d *disk) id() string { return "nvme-eui." + d.serial }

// node returns the name of its node below /dev.
func (d *disk) node() string { return fmt.Sprintf("nvme%dn1", d.slot) }

func widgetID(serial string) string { return "node-" + serial + "-widget" }

func (d *disk) sysPath() string {
	return fmt.Sprintf("/devices/pci0000:00/0000:00:%02x.0/nvme/nvme%d/nvme%dn1", d.slot, d.slot, d.slot)
}

const diskText = `P: /devices/pci0000:00/0000:00:%02[1]x.0
E: SUBSYSTEM=pci
E: DRIVER=nvme
A: numa_node=0

P: /devices/pci0000:00/0000:00:%02[1]x.0/nvme/nvme%[1]d
E: SUBSYSTEM=nvme
A: state=%[2]s
A: transport=pcie
A: model=Drive
A: serial=%[3]s

P: %[5]s
N: nvme%[1]dn1
E: SUBSYSTEM=block
E: DEVTYPE=disk
E: DEVNAME=/dev/nvme%[1]dn1
E: MAJOR=259
E: MINOR=%[1]d
A: wwid=eui.%[3]s
A: nsid=1
A: size=1024
A: ro=0
A: hidden=0
A: diskseq=%[4]d

`

const widgetText = `P: /devices/virtual/widget/%[1]s
N: %[1]s
E: DEVNAME=/dev/%[1]s
E: SUBSYSTEM=widget
E: ID_SERIAL=%[2]s
E: ID_SERIAL_SHORT=%[2]s
E: MAJOR=240
E: MINOR=%[3]s

`

// hardware is the simulated hardware with its helpers. It records forbidden operations on disks.
type hardware struct {
	mu       sync.Mutex
	disks    []*disk
	widgets  map[string]string          // serials by node name
	were     map[string]map[string]bool // for each node, the IDs of all devices that it has belonged to
	sequence int
	has      func(pod, id string) bool // reports whether a pod has a disk, or nil if unknown
	crime    error                     // the first forbidden operation
}

// text returns the recording of the hardware.
func (h *hardware) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	b.WriteString("F: /proc/self/mountinfo=\nF: /proc/sys/kernel/random/boot_id=one\\n\n\n")
	for _, d := range h.disks {
		state := "live"
		if d.sick {
			state = "dead"
		}
		if d.slot > 0 {
			fmt.Fprintf(&b, diskText, d.slot, state, d.serial, d.sequence, d.sysPath())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.widgets)) {
		fmt.Fprintf(&b, widgetText, name, h.widgets[name], strings.TrimPrefix(name, "widget"))
	}
	return b.String()
}

// plug plugs a disk into a slot.
func (h *hardware) plug(d *disk, slot int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sequence++
	d.slot, d.sequence, d.moved = slot, h.sequence, d.content != ""
	h.note(d.node(), d.id())
}

// plugWidget makes a widget with a serial number.
func (h *hardware) plugWidget(name, serial string) {
	h.widgets[name] = serial
	h.note(name, widgetID(serial))
}

// note records that a node belongs to a device.
func (h *hardware) note(node, id string) {
	if h.were == nil {
		h.were = make(map[string]map[string]bool)
	}
	if h.were[node] == nil {
		h.were[node] = make(map[string]bool)
	}
	h.were[node][id] = true
}

// unplug removes a disk.
func (h *hardware) unplug(d *disk) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d.slot, d.pulled, d.user = 0, 0, "" // a process that has the disk open loses access
}

// pull begins to unplug a disk. Until it is unplugged, the test does not know whether others see it.
func (h *hardware) pull(d *disk) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d.slot, d.pulled, d.user = 0, d.slot, ""
}

// behind returns the ID of the device to which a node belongs now, or "". The caller holds mu.
func (h *hardware) behind(node string) string {
	name := strings.TrimPrefix(node, "/dev/")
	if serial := h.widgets[name]; serial != "" {
		return widgetID(serial)
	}
	for _, d := range h.disks {
		if slot := max(d.slot, d.pulled); slot > 0 && name == fmt.Sprintf("nvme%dn1", slot) {
			return d.id()
		}
	}
	return ""
}

// recordNodes records the nodes that a pod got for these IDs, and returns them with the IDs of the devices behind them. Shares
// of one device have one node. A node of another device is an error, even if devices move or vanish in between.
func (h *hardware) recordNodes(pod string, ids []string, nodes []*pluginapi.DeviceSpec) (things map[string]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var asked []string
	for _, id := range ids {
		device, _, _ := strings.Cut(id, "::")
		asked = append(asked, device)
	}
	things = make(map[string]string)
	for _, node := range nodes {
		things[node.GetHostPath()] = h.behind(node.GetHostPath())
	}
	slices.Sort(asked)
	if !slices.Equal(slices.Compact(asked), slices.Sorted(maps.Values(things))) {
		h.crime = errors.Join(h.crime, fmt.Errorf("%s is to have %v and is given %v, which are %v", pod, ids, nodes, things))
	}
	return things
}

// in returns the disk in a slot, or nil. The caller holds mu.
func (h *hardware) in(slot int) *disk {
	for _, d := range h.disks {
		if d.slot == slot {
			return d
		}
	}
	return nil
}

// find returns the disk with an ID, or nil.
func (h *hardware) find(id string) *disk {
	for _, d := range h.disks {
		if d.id() == id {
			return d
		}
	}
	return nil
}

// checkTarget returns the disk of a target, after the same checks as in the helper. The caller holds mu.
func (h *hardware) checkTarget(t device.Target) (*disk, error) {
	slot, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(path.Base(t.SysPath), "nvme"), "n1"))
	if err != nil {
		return nil, err
	}
	d := h.in(slot)
	if d == nil || !maps.Equal(t.Identity, map[string]string{
		"wwid": "eui." + d.serial, "diskseq": strconv.Itoa(d.sequence),
	}) {
		return nil, fmt.Errorf("%w: slot %d", device.ErrGone, slot)
	}
	return d, nil
}

// touch returns helpers that work on this hardware.
func (h *hardware) touch() *device.Touch {
	return &device.Touch{Probe: h.probe, Survey: h.survey, Prepare: h.prepare, Holders: h.holders}
}

func (h *hardware) probe(_ context.Context, t device.Target, held bool) (device.Report, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.checkTarget(t)
	switch {
	case err != nil:
		return device.Report{}, err
	case held:
		return device.Report{}, nil
	case d.user != "":
		return device.Report{}, fmt.Errorf("%w: by %s", device.ErrInUse, d.user)
	}
	return device.Report{Content: d.content, Size: diskSize}, nil
}

// diskSize is the size of each disk.
const diskSize = 1 << 20

func (h *hardware) survey(_ context.Context, t device.Target, from int64) (device.Report, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.checkTarget(t)
	switch {
	case err != nil:
		return device.Report{}, err
	case d.user != "":
		return device.Report{}, fmt.Errorf("%w: by %s", device.ErrInUse, d.user)
	case d.content != "":
		return device.Report{Read: max(from, 4096), Size: diskSize, Content: d.content}, nil
	}
	return device.Report{Read: diskSize, Size: diskSize}, nil
}

func (h *hardware) prepare(_ context.Context, t device.Target, w device.Work) (device.Report, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.checkAllowed(t, w.Tenant)
	switch {
	case err != nil:
		return device.Report{}, err
	case w.Scrub != "" && !w.Tenant:
		h.crime = errors.Join(h.crime, fmt.Errorf("%s is to be erased though no pod has left anything there", d.serial))
		return device.Report{}, fmt.Errorf("%w: an erasure without a tenant", turnover.ErrUnfit)
	case d.content != "" && d.moved && h.has != nil && !h.has(d.content, d.id()):
		h.crime = errors.Join(h.crime, fmt.Errorf("%s is to be reset though %s, whose disk it was, has gone", d.serial, d.content))
	}
	p := device.Report{Done: "done", Appearance: strconv.Itoa(d.sequence), Size: diskSize}
	switch {
	case w.Scrub == "": // a reset does not change the content
		return p, nil
	case d.content != "" && d.moved:
		h.crime = errors.Join(h.crime, fmt.Errorf("what is on %s is to be erased, which may be anybody's", d.serial))
	case d.failing:
		d.failed = true
		return device.Report{}, errors.New("the disk does not erase")
	}
	d.content, d.moved, d.unknown = "", false, false
	p.Erased = true
	return p, nil
}

// checkAllowed checks, like the helper, that no process uses a disk and that its data may be erased. A forbidden request is an
// error of the daemon, although the helper refuses it.
func (h *hardware) checkAllowed(t device.Target, leftover bool) (*disk, error) {
	d, err := h.checkTarget(t)
	switch {
	case err != nil:
		return nil, err
	case d.user != "":
		h.crime = errors.Join(h.crime, fmt.Errorf("%s is to be cleared while %s works with it", d.serial, d.user))
		return nil, fmt.Errorf("%w: by %s", device.ErrInUse, d.user)
	case d.content != "" && !leftover:
		return nil, fmt.Errorf("%w: the disk contains %s", turnover.ErrUnfit, d.content)
	}
	return d, nil
}

func (h *hardware) holders(_ context.Context, nodes []string) ([]device.Holder, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []device.Holder
	for _, node := range nodes {
		for _, d := range h.disks {
			if d.user != "" && path.Base(node) == path.Base(d.sysPath()) && d.slot > 0 {
				all = append(all, device.Holder{PID: 1000, Command: "app", PodUID: d.user})
			}
		}
	}
	return all, nil
}

// work simulates a container of a pod, which uses the pod's disks from now on. The container checks their content and
// writes to them.
func (h *hardware) work(pod string, ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		d := h.find(id)
		if d == nil {
			continue // the device is a widget
		}
		if d.content != "" && d.content != pod {
			h.crime = errors.Join(h.crime, fmt.Errorf("%s reads on %s what %s has left there", pod, d.serial, d.content))
		}
		if d.slot > 0 {
			d.content, d.user = pod, pod
		}
	}
}

// checkGiven records an error if a pod got a disk that another pod's data is still on.
func (h *hardware) checkGiven(pod string, ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		if d := h.find(id); d != nil && d.content != "" {
			h.crime = errors.Join(h.crime, fmt.Errorf("%s is given %s with what %s has left there", pod, d.serial, d.content))
		}
	}
}

// end ends the processes of a pod.
func (h *hardware) end(pod string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.disks {
		if d.user == pod {
			d.user = ""
		}
	}
}

// failure returns the first forbidden operation.
func (h *hardware) failure() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.crime
}
