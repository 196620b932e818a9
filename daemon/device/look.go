// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// Sighting is what one look found out about one device.
type Sighting struct {
	Device     *Device    // for hardware that could not be identified: no ID, only Class and SysPath
	Resource   string     // of the first rule that matches; empty: none does
	Allocation Allocation // empty: there is none to give
	Nodes      []Node     // those there are of a device that has no Allocation, since no rule takes it or a node is missing
	Target     *Target    // as it was when the device was identified; nil: there is none
	Offer      error      // why it must not be handed out, nil: it may be
	Health     error      // why it is sick, nil: it is healthy
	// Fingerprint is by what the content of the disk is known again; empty: it was not read. Asked is the one that the
	// probe was to compare with.
	Fingerprint, Asked string
	Blank              bool      // the probe has found nothing on the disk
	Size               int64     // of the disk, in bytes; 0: not known
	Written            uint64    // to the disk, see [sysfs.Written], before it was probed
	Warning            string    // what is not as it should be though it is healthy
	Unread             bool      // whether nobody has answered what is on the disk and how it is
	NeedsAll           bool      // it needs all of the functions; else any
	Functions          []string  // sysfs paths of the PCI functions by which it is reached
	Counters           []Counter // of errors, as they stand
	Instance           uint64    // of the hardware in this boot, see [Host.Instance]
	Steps              []Step    // how the look came to it, where [Explain] asked for that
}

// HostUse tells whether this host uses the disk: it has mounted it or swaps to it. As long as a pod holds it, what is
// built on top may be the pod's doing; else it is the host's too.
func (s *Sighting) HostUse(held bool) bool {
	var use hostUse
	return errors.As(s.Offer, &use) && (use.certain || !held)
}

// Twin notes that the device at another sysfs path has the same identity. Of a disk that may be another way to the same
// medium, which two pods must not have: it is not offered.
func (s *Sighting) Twin(other string) {
	if s.Target.IsDisk() && !errors.Is(s.Offer, errTwin) {
		s.Offer = joined(s.Offer, twin(path.Base(other)))
	}
}

// Look finds out everything about one udev device: which devices are in it, to which resource they belong, whether they
// may be offered and are healthy, and what a container would get. It reads sysfs and may block as long as the kernel
// does. A udev device that is no subject of any class gives nothing. What it finds refers to seen, which is not to be
// written.
func Look(h *Host, rules []Rule, seen *udev.Device) []Sighting {
	return lookAt(h, rules, withFunction(h, seen), nil)
}

// lookAt is [Look], which adds its steps to t.
func lookAt(h *Host, rules []Rule, u *udev.Device, t *trace) []Sighting {
	class := selecting(*u, t)
	var group *Rule
	var owner string
	if class == nil {
		r, of := nodeRule(h, rules, *u, t)
		if r == nil {
			return nil
		}
		class = &Generic
		if r.Group != nil {
			group, owner = r, of
		}
	}
	if !h.Present(u.SysPath) {
		t.nothing(class, ErrGone)
		return nil
	}
	devices, err := identify(h, rules, u, class, group, owner)
	if err != nil {
		s := Sighting{Device: &Device{Class: class, SysPath: u.SysPath, NUMANode: -1, Udev: u}, Offer: err}
		if t != nil {
			t.add("identity", class.Name, err, "")
			s.Steps = t.steps
		}
		return []Sighting{s}
	}
	if len(devices) == 0 {
		t.nothing(class, errNoDevice)
	}
	sightings := make([]Sighting, 0, len(devices))
	for _, d := range devices {
		d.Class, d.SysPath, d.Udev = class, u.SysPath, u
		own := t.fork()
		s := look(h, rules, d, own)
		if s.Device.group = nil; t != nil {
			s.Steps = own.steps
		}
		sightings = append(sightings, s)
	}
	return sightings
}

// identify finds the devices in a udev device: the group that it stands for, or those of its class.
func identify(h *Host, rules []Rule, u *udev.Device, class *Class, group *Rule, owner string) ([]Device, error) {
	if group != nil {
		return identifyGroup(h, rules, group, owner, u)
	}
	return class.Identify(h, *u)
}

// look looks at one device that is identified.
func look(h *Host, rules []Rule, d Device, t *trace) Sighting {
	t.add("identity", d.Class.Name, nil, strings.TrimRight("it is "+d.ID+", "+d.Model, ", "))
	rule, err := d.rule, error(nil)
	if rule == nil {
		rule, err = ruleFor(h, rules, d, t)
		d.rule = rule
	} else {
		t.rule("rule", rule.Resource, rule, nil, func() string { return "it is a member of a group" })
	}
	s := Sighting{Device: &d, NeedsAll: d.Class.NeedsAll, Instance: h.Instance(d.SysPath)}
	if d.Class.Offer != nil {
		s.Offer = d.Class.Offer(h, d)
	}
	if err != nil {
		t.offer(nil, s.Offer, s.Offer)
		if !unsuited(s.Offer) { // which says more than that no rule takes it
			s.Offer = err
		}
		found, _ := d.allocate(h) // a device that is not offered may lack nodes
		s.Nodes = found.Nodes
		return s
	}
	s.Resource = rule.Resource
	if d.Class.Health != nil {
		s.Health = d.Class.Health(h, d)
	}
	s.Functions = functionsOf(h, d)
	pciHealth(h, s.Functions, &s)
	if d.Class.Warn != nil {
		s.warn(d.Class.Warn(h, d))
	}
	s.aim(h)
	if s.Target.IsDisk() {
		s.Written = sysfs.Written(&h.Tree, d.SysPath)
	}
	h.probe(&s, rule.AllowInUse)
	offer := s.Offer
	s.Offer = rule.forgive(offer)
	t.offer(rule, offer, s.Offer)
	allocation, err := d.allocate(h)
	t.add("health", "", s.Health, strings.TrimRight("the hardware is well; "+s.Warning, "; "))
	t.nodes(allocation, err)
	if err != nil && (s.Offer == nil || OnlyUnanswered(s.Offer)) {
		s.Offer = err
	}
	if err != nil {
		s.Nodes, allocation = allocation.Nodes, Allocation{}
	}
	s.Allocation = allocation
	s.warn(reloadWarning(h, allocation))
	return s
}

// selecting returns the class that has u as its subject, or nil. [Generic], which takes any device with a node, has
// subjects only where a rule asks for them.
func selecting(u udev.Device, t *trace) *Class {
	for _, c := range Classes {
		if c.Selects(u) {
			t.add("class", c.Name, nil, "it stands for a device of this class: "+c.Doc)
			return c
		}
		if t != nil && c != &Generic {
			t.add("class", c.Name, fmt.Errorf("subsystem %q, devtype %q is none of its devices", u.Subsystem, u.DevType), "")
		}
	}
	return nil
}
