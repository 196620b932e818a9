// SPDX-License-Identifier: Apache-2.0

// Package device implements the classes of hardware that metalplug offers. Each class defines what a device is, how to recognise
// it after a reboot, when it is healthy, and what a container needs in order to use it.
//
// A class is a value of type [Class] with match rules and a few functions. Each class has its own file. The functions read sysfs,
// procfs and /dev through a [Host]. The functions store nothing, so each call reads everything again. A call may block until the
// kernel answers, so the inventory's loop never makes such calls.
package device

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/udev"
)

// Device identifies a device that a container can get. The device's state is not stored here and must be read from sysfs.
type Device struct {
	ID            string // the same after a reboot, unique on the machine, made by [MakeID]
	Class         *Class
	Model         string       // human-readable model name, or empty
	SysPath       string       // sysfs path of the udev device from which the device was identified
	Part          string       // name of the part, or empty if the device is the whole udev device
	NUMANode      int          // -1 if unknown
	Udev          *udev.Device // the udev device at SysPath, which must not be modified, or nil before the first inspection
	Generic       string       // number of an NVMe namespace's generic node, such as "242:1", or empty
	rule          *Rule        // the rule that assigns the device to a resource, or nil
	firstFunction string       // for a device without a PCI parent, the sysfs path of the first PCI function that leads to it
	group         *groupNodes  // a group's nodes; set only during an inspection
}

// ClassName returns the name of the device's class. The name is empty if only the kubelet's checkpoint lists the device.
func (d *Device) ClassName() string {
	if d.Class == nil {
		return ""
	}
	return d.Class.Name
}

// nodes returns the udev devices whose nodes belong to d.
func (d Device) nodes() []udev.Device {
	if d.group != nil {
		return d.group.all
	}
	return []udev.Device{*d.Udev}
}

// Node is a device node for a container.
type Node struct {
	Host        string // path on the host, preferably a link that stays correct when device numbers change
	Container   string // path in the container
	Permissions string // some of the letters "rwm", or empty for the resource's permissions
}

// Shared reports whether all devices in a class share this node. A process can have a shared node open without using any device.
func (n Node) Shared() bool {
	return slices.Contains([]string{
		// drivers/gpu/drm/amd/amdkfd/kfd_chardev.c
		"/dev/kfd",
		"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", // nv-chardev-numbers.h of the driver
		"/dev/infiniband/rdma_cm", // drivers/infiniband/core/ucma.c
		"/dev/vfio/vfio",          // drivers/vfio/container.c
	}, n.Container)
}

// Allocation describes the nodes and variables that a container gets for one device.
type Allocation struct {
	Nodes []Node
	Env   map[string]string // environment variables that software expects; the values for several devices are joined by commas
}

// ExclusiveNodes returns the host paths of the nodes that no other device shares.
func (a Allocation) ExclusiveNodes() []string {
	var nodes []string
	for _, n := range a.Nodes {
		if !n.Shared() {
			nodes = append(nodes, n.Host)
		}
	}
	return nodes
}

// Names of the classes. The configuration refers to a class by its name, so that a program that reads the configuration need not
// contain the classes' functions.
const (
	GPUName        = "gpu"
	FPGAName       = "fpga"
	InfiniBandName = "infiniband"
	NVMeName       = "nvme"
	NodeName       = "node"
	BundleName     = "bundle"
)

// Class is a kind of hardware. If a class does not support a function, the field for it is nil, but Identify, Health and Allocate
// are never nil. The functions must not use [Classes], because this would create an initialization cycle.
type Class struct {
	Name string // name in the configuration
	Doc  string // one-line description

	// Match selects the subjects of the class. A subject is a udev device that represents hardware of the class and matches at least
	// one of these entries.
	Match []udev.Match
	// Wakes selects other devices whose events require an inspection of all subjects of the class. An event above or below a
	// subject's sysfs path always requires an inspection of the subject.
	Wakes []udev.Match
	// Disks means that the devices are disks or give access to a disk. Such devices are inspected again when the host mounts a file
	// system or uses a disk for LVM, RAID or LUKS.
	Disks bool
	// Renamed means that udev may rename the devices. A device that is no longer at its path may therefore still be present under
	// another name.
	Renamed bool
	// Every is the interval at which the subjects are inspected without an event. A class needs an interval if the kernel does not
	// report every change in a device's health. If Every is 0, only the periodic check of all devices inspects the subjects.
	Every time.Duration
	// DevNodes are shell patterns for all nodes that the class gives to containers. A test compares them with the systemd
	// unit and the SELinux policy.
	DevNodes []string

	// Identify returns the devices that a subject represents. If Identify finds no device, Identify returns the reason as an
	// error, such as [ErrExcluded], [ErrGone] or a read error.
	Identify func(*Host, udev.Device) ([]Device, error)
	// Offer returns the reason why a device must not be offered now, or nil. A device that is not offered may still be healthy.
	Offer func(*Host, Device) error
	// Health returns nil for a healthy device, or the reason why it is unhealthy. pci.go contains the checks that are the
	// same for all PCI functions.
	Health func(*Host, Device) error
	// Warning describes a problem with a usable device that the operator should solve, or returns "" if there is none.
	Warning func(*Host, Device) string
	// Target describes the device for a helper. Target returns nil if no helper can work on the device.
	Target func(*Host, Device) *Target
	// NeedsAll means that a device is unhealthy if any of its PCI functions is unhealthy, rather than if all of them are.
	NeedsAll bool
	// Notice returns a mark for an event that reports the start or end of a fault that sysfs does not show. Notice is called for
	// every event on the node.
	Notice func(udev.Event) (Mark, bool)
	// Allocate adds to the recipe the nodes and variables that a container needs.
	Allocate func(*recipe, Device)
}

// slowCheck is how often hardware is inspected for changes that cause no event. For example, a PCI function may vanish from a bus
// that does not support hotplug, or a counter or a driver's attribute may change.
const slowCheck = time.Minute

// Classes lists the classes in order of precedence. A udev device belongs to the first class that matches it.
var Classes = []*Class{&GPU, &FPGA, &InfiniBand, &NVMe, &Generic}

// ClassNamed returns the class with the given name, or nil.
func ClassNamed(name string) *Class {
	if i := slices.IndexFunc(Classes, func(c *Class) bool { return c.Name == name }); i >= 0 {
		return Classes[i]
	}
	return nil
}

// WokenBy reports whether an event for the udev device d requires an inspection of all subjects of the class. For example, d may
// belong to a group that one of the subjects represents.
func (c *Class) WokenBy(d udev.Device, rules ...Rule) bool {
	return anyMatch(c.Wakes, d) || slices.ContainsFunc(rules, func(r Rule) bool {
		return r.Class == c && r.Group != nil && r.Group.matches(d.DevNode)
	})
}

func anyMatch(matches []udev.Match, d udev.Device) bool {
	return slices.ContainsFunc(matches, func(m udev.Match) bool { return m.Matches(d) })
}

// LocatedID returns the ID of a device whose identity another device also has. The location in this ID is unique on the node. The
// location is udev's path through the buses, the PCI function's address, or the sysfs path.
func (d *Device) LocatedID() string {
	location := d.Udev.Properties.Value("ID_PATH")
	switch {
	case location != "":
	case FunctionIn(d.SysPath) == d.SysPath:
		location = path.Base(d.SysPath)
	default:
		location = strings.ReplaceAll(strings.TrimPrefix(d.SysPath, "/sys/devices/"), "/", "-")
	}
	return MakeID(d.ID, location)
}

// idSize is the maximum length of a device ID. The device plugin API v1beta1 allows 63 characters (api.proto). A device has at
// most 1000 shares, and their IDs range from ID::0 to ID::999.
const idSize = 63 - len("::999")

// MakeID joins the parts of a hardware identity with "-" into a device ID of at most 58 bytes. The ID contains only characters
// that CDI allows in device names (letters, digits, "_", ".", ":", "-", with a letter or digit at both ends). The ID never
// contains "::", because "::" precedes a share's number. If MakeID replaces or removes characters, it appends eight hexadecimal
// digits of the SHA-256 of the original identity, so that the ID stays unique.
func MakeID(parts ...string) string {
	original := strings.Join(parts, "-")
	id := strings.ReplaceAll(strings.Map(idRune, original), "::", ":-")
	id = strings.TrimFunc(id, func(r rune) bool { return !alphanumeric(r) })
	if id == original && id != "" && len(id) <= idSize {
		return id
	}
	sum := sha256.Sum256([]byte(original))
	digest := hex.EncodeToString(sum[:4])
	if id == "" {
		return digest
	}
	return id[:min(len(id), idSize-len(digest)-1)] + "-" + digest
}

func idRune(r rune) rune {
	if alphanumeric(r) || strings.ContainsRune("_.:-", r) {
		return r
	}
	return '-'
}

func alphanumeric(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}
