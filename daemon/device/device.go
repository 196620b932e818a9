// SPDX-License-Identifier: Apache-2.0

// Package device knows the classes of hardware that metalplug offers: what a device of each class is, how it is
// recognised across reboots, whether it is well, and what a container needs to use it.
//
// A class is a value, [Class]: match rules and a handful of functions in one file. Its functions read sysfs, procfs and
// /dev through a [Host] and keep nothing: what is needed later is read again. They may block for as long as the kernel
// does, so they run beside the inventory's loop, never in it.
package device

import (
	"errors"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/udev"
)

// Reasons for which a class keeps a device from being offered. Each is wrapped with the particulars.
var (
	// ErrGone: the hardware is not there any more.
	ErrGone = errors.New("gone")
	// ErrExcluded: not a device for containers at all, such as the display of a management controller.
	ErrExcluded = errors.New("not for containers")
	// ErrInUse: this host uses the device, or it holds data. A pod that holds the device may cause this too, so the
	// inventory forgives it while one does.
	ErrInUse = errors.New("in use")
	// ErrIncomplete: some of the device's nodes are not there yet, or its driver has not finished.
	ErrIncomplete = errors.New("not complete")
)

// OnlyInUse tells whether a reason against an offer is that the device is in use, and no other.
func OnlyInUse(err error) bool {
	return errors.Is(err, ErrInUse) && !errors.Is(err, ErrExcluded) && !errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrGone)
}

// Device is one thing that a container can be given. It says what the device is; sysfs says how it is.
type Device struct {
	ID       string // stable across reboots and slots, unique on the machine, at most 63 bytes, safe as a CDI name
	Class    *Class
	Model    string      // for people; may be empty
	SysPath  string      // of the udev device that it was identified from
	Part     string      // which part of that udev device, for a class that finds several in one; mostly empty
	NUMANode int         // -1: none known
	Udev     udev.Device // the udev device that it was identified from
}

// Node is a device node that a container gets.
type Node struct {
	Host        string // where the runtime finds it: a link that outlives renumbering where udev makes one
	Container   string // its path in the container
	Permissions string // of "rwm"; empty: what the resource says
}

// Allocation is what a container gets for one device.
type Allocation struct {
	Nodes []Node
	Env   map[string]string // names that users of the class know; over several devices the values are joined by commas
}

// Class is a kind of hardware. A nil function is an ability that the class does not have; Identify and Allocate are
// never nil. No function may mention [Classes].
type Class struct {
	Name string // as in the configuration
	Doc  string // one line for people

	// Match selects the one udev device that stands for the hardware, its subject. Any of them suffices.
	Match []udev.Match
	// Wakes selects events of other devices after which every subject of the class must be looked at again. Events
	// above and below a subject's own sysfs path always have that effect.
	Wakes []udev.Match
	// Disks says that its devices are disks, or reach one: what this host mounts and what it builds on top concerns them.
	Disks bool
	// Every is how often its subjects are looked at without an event, for the health that the kernel sends none of.
	// 0: only at the audit.
	Every time.Duration
	// DevNodes are shell patterns of all nodes that the class hands out; the unit and the policy are checked against it.
	DevNodes []string

	// Identify finds the devices in a subject. An error means none, and says why: [ErrExcluded], [ErrGone] or whatever
	// kept it from being read.
	Identify func(*Host, udev.Device) ([]Device, error)
	// Offer tells why a device must not be handed out at present, though it may be in perfect health.
	Offer func(*Host, Device) error
	// Health returns nil for a healthy device, else why it is not. What all PCI functions have in common is found out
	// without it (pci_health.go).
	Health func(*Host, Device) error
	// Functions finds the PCI functions by which a device is reached, any of them, where that is not the one above it.
	Functions func(*Host, Device) []string
	// Notice returns the mark that an event leaves on the hardware, where sysfs does not show later what it says. It is
	// asked about every event of the machine.
	Notice func(udev.Event) (Mark, bool)
	// Allocate finds the nodes and variables that a container needs. [ErrIncomplete] names what is missing.
	Allocate func(*Host, Device) (Allocation, error)
}

// slowCheck is how often hardware is looked at for what no event tells: PCI functions that fall off the bus where there
// is no hotplug, counters, attributes of drivers.
const slowCheck = time.Minute

// Classes are all classes, in the order in which a udev device is tried.
var Classes = []*Class{&GPU, &FPGA, &InfiniBand, &NVMe, &Generic}

// ClassNamed returns the class of that name, or nil.
func ClassNamed(name string) *Class {
	for _, c := range Classes {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Selects tells whether d is a subject of the class.
func (c *Class) Selects(d udev.Device) bool { return anyMatch(c.Match, d) }

// WokenBy tells whether an event of d is a reason to look at every subject of the class.
func (c *Class) WokenBy(d udev.Device) bool { return anyMatch(c.Wakes, d) }

func anyMatch(matches []udev.Match, d udev.Device) bool {
	for _, m := range matches {
		if m.Matches(d) {
			return true
		}
	}
	return false
}

// Sighting is what one look found out about one device.
type Sighting struct {
	Device     Device // for hardware that could not be identified: no ID, only Class and SysPath
	Resource   string // of the first rule that matches; empty: none does
	Allocation Allocation
	Offer      error     // why it must not be handed out, nil: it may be
	Health     error     // why it is sick, nil: it is healthy
	Warning    string    // what is not as it should be though it is healthy
	Functions  []string  // sysfs paths of the PCI functions by which it is reached, any of them
	Counters   []Counter // of errors, as they stand
}

// Look finds out everything about one udev device: which devices are in it, to which resource they belong, whether they
// may be offered and are healthy, and what a container would get. It reads sysfs and may block as long as the kernel
// does. A udev device that is no subject of any class gives nothing.
func Look(h *Host, rules []Rule, u udev.Device) []Sighting {
	class := subjectOf(h, rules, u)
	if class == nil || !h.Present(u.SysPath) {
		return nil
	}
	devices, err := class.Identify(h, u)
	if err != nil {
		return []Sighting{{Device: Device{Class: class, SysPath: u.SysPath, NUMANode: -1, Udev: u}, Offer: err}}
	}
	sightings := make([]Sighting, 0, len(devices))
	for _, d := range devices {
		d.Class, d.SysPath, d.Udev = class, u.SysPath, u
		sightings = append(sightings, look(h, rules, d))
	}
	return sightings
}

func look(h *Host, rules []Rule, d Device) Sighting {
	s := Sighting{Device: d}
	if d.Class.Offer != nil {
		s.Offer = d.Class.Offer(h, d)
	}
	rule, err := ruleFor(h, rules, d)
	if err != nil {
		if !errors.Is(s.Offer, ErrExcluded) { // which says more than that no rule takes it
			s.Offer = err
		}
		return s
	}
	s.Resource, s.Offer = rule.Resource, rule.forgive(s.Offer)
	if d.Class.Health != nil {
		s.Health = d.Class.Health(h, d)
	}
	s.Functions = functionsOf(h, d)
	pciHealth(h, s.Functions, &s)
	allocation, err := d.Class.Allocate(h, d)
	if err != nil && s.Offer == nil {
		s.Offer = err
	}
	s.Allocation = allocation
	return s
}

// subjectOf returns the class that u is a subject of. [Generic], which takes any device with a node, has subjects only
// where a rule asks for them.
func subjectOf(h *Host, rules []Rule, u udev.Device) *Class {
	for _, c := range Classes {
		if c.Selects(u) {
			return c
		}
	}
	for _, r := range rules {
		if r.Class == &Generic && u.DevNode != "" && r.matches(h, u) == nil {
			return &Generic
		}
	}
	return nil
}

// excludedf returns an error that is [ErrExcluded] with the particulars.
func excludedf(format string, args ...any) error { return classified(ErrExcluded, format, args) }

// inUsef returns an error that is [ErrInUse] with the particulars.
func inUsef(format string, args ...any) error { return classified(ErrInUse, format, args) }

// incompletef returns an error that is [ErrIncomplete] with the particulars.
func incompletef(format string, args ...any) error { return classified(ErrIncomplete, format, args) }

func classified(kind error, format string, args []any) error {
	return fmt.Errorf("%w: %w", kind, fmt.Errorf(format, args...))
}
