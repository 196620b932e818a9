// SPDX-License-Identifier: Apache-2.0

// Package device knows the classes of hardware that metalplug offers. It says what a device of each class is, how it is
// recognised across reboots, whether it is healthy, and what a container needs to use it.
//
// A class is a value of type [Class] with match rules and a handful of functions in one file. Its functions read sysfs,
// procfs and /dev through a [Host]. They keep nothing, and read again what they need later. They may block for as long as the
// kernel does, so they run beside the inventory's loop, never in it.
package device

import (
	"slices"
	"time"

	"github.com/metalplug/metalplug/udev"
)

// Device is one thing that a container can be given. It says what the device is, and sysfs says in which state.
type Device struct {
	ID       string // stable across reboots and slots, unique on the machine, as [MakeID] makes it
	Class    *Class
	Model    string       // for people, may be empty
	SysPath  string       // of the udev device that it was identified from
	Part     string       // which part of that udev device, or empty for a whole one
	NUMANode int          // or -1 if it is not known
	Udev     *udev.Device // the udev device that it was identified from, shared, or nil before the first look
	rule     *Rule        // that takes it, or nil
	group    *members     // of a group during a look, or nil
}

// nodes returns the udev devices that have the nodes of a device of class node.
func (d Device) nodes() []udev.Device {
	if d.group != nil {
		return d.group.all
	}
	return []udev.Device{*d.Udev}
}

// Node is a device node that a container gets.
type Node struct {
	Host        string // where the runtime finds it, by a link that outlives renumbering if udev makes one
	Container   string // its path in the container
	Permissions string // of "rwm", or empty for those of the resource
}

// Shared reports whether all devices of a class have this one node. A process that has it open need not have any of the
// devices.
func (n Node) Shared() bool {
	return slices.Contains([]string{
		"/dev/kfd",                                                                          // drivers/gpu/drm/amd/amdkfd/kfd_chardev.c
		"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", // nv-chardev-numbers.h of the driver
		"/dev/infiniband/rdma_cm", // drivers/infiniband/core/ucma.c
		"/dev/vfio/vfio",          // drivers/vfio/container.c
	}, n.Container)
}

// Allocation is what a container gets for one device.
type Allocation struct {
	Nodes []Node
	Env   map[string]string // names that users of the class know, with the values of several devices joined by commas
}

// Own returns the host paths of the nodes that are of one device alone.
func (a Allocation) Own() []string {
	var nodes []string
	for _, n := range a.Nodes {
		if !n.Shared() {
			nodes = append(nodes, n.Host)
		}
	}
	return nodes
}

// Class is a kind of hardware. A nil function is an ability that the class does not have. Identify, Health and Allocate are
// never nil. No function may mention [Classes].
type Class struct {
	Name string // as in the configuration
	Doc  string // one line for people

	// Match selects the one udev device that stands for the hardware, its subject. Any of them suffices.
	Match []udev.Match
	// Wakes selects events of other devices after which every subject of the class must be looked at again. Events
	// above and below a subject's own sysfs path always have that effect.
	Wakes []udev.Match
	// Disks reports whether its devices are disks, or reach one. They are looked at again after each change of what this host
	// mounts or builds on disks.
	Disks bool
	// Renamed reports whether udev gives its devices other names. A device that is not at its path need not be gone then.
	Renamed bool
	// Every is how often its subjects are looked at without an event, for the health that the kernel sends none of. With 0
	// only the audit looks at them.
	Every time.Duration
	// DevNodes are shell patterns of all nodes that the class hands out. A test checks the unit and the policy against them.
	DevNodes []string

	// Identify finds the devices in a subject. An error means that there is none, and says why, such as [ErrExcluded],
	// [ErrGone] or the error of a read.
	Identify func(*Host, udev.Device) ([]Device, error)
	// Offer returns why a device must not be handed out at present, or nil. The device may be healthy all the same.
	Offer func(*Host, Device) error
	// Health returns nil for a healthy device, a [warning] for one that is usable all the same, or else why it is not healthy.
	// It leaves out the health that all PCI functions have in common (pci_health.go).
	Health func(*Host, Device) error
	// Target returns how a helper finds a device by itself, or nil if the helper can do nothing to it.
	Target func(*Host, Device) *Target
	// NeedsAll reports whether a device is unhealthy with any of its functions. Otherwise one healthy function is enough.
	NeedsAll bool
	// Notice returns the mark that an event leaves on the hardware, where sysfs does not show later what it says. It is
	// asked about every event of the machine.
	Notice func(udev.Event) (Mark, bool)
	// Allocate finds the nodes and variables that a container needs.
	Allocate func(*recipe, Device)
}

// slowCheck is how often hardware is looked at for changes without an event. These are PCI functions that fall off the bus
// where there is no hotplug, counters, and attributes of drivers.
const slowCheck = time.Minute

// Classes are all classes, in the order in which a udev device is tried.
var Classes = []*Class{&GPU, &FPGA, &InfiniBand, &NVMe, &Generic}

// ClassNamed returns the class of that name, or nil.
func ClassNamed(name string) *Class {
	if i := slices.IndexFunc(Classes, func(c *Class) bool { return c.Name == name }); i >= 0 {
		return Classes[i]
	}
	return nil
}

// Selects reports whether d is a subject of the class.
func (c *Class) Selects(d udev.Device) bool { return anyMatch(c.Match, d) }

// WokenBy reports whether an event of d is a reason to look at every subject of the class, because d may be a member of a
// group that one of them stands for.
func (c *Class) WokenBy(d udev.Device, rules ...Rule) bool {
	return anyMatch(c.Wakes, d) || slices.ContainsFunc(rules, func(r Rule) bool {
		return r.Class == c && r.Group != nil && r.Group.names(d.DevNode)
	})
}

func anyMatch(matches []udev.Match, d udev.Device) bool {
	return slices.ContainsFunc(matches, func(m udev.Match) bool { return m.Matches(d) })
}
