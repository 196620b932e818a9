// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"path"
	"slices"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// Sighting is what one look found out about one device.
type Sighting struct {
	Device     *Device    // has no ID, only Class and SysPath, where the hardware could not be identified
	Resource   string     // of the first rule that matches, or empty
	Allocation Allocation // empty if a container cannot get the device
	Nodes      []Node     // the nodes that exist of a device without Allocation, since no rule takes it or a node is missing
	Target     *Target    // as it was when the device was identified, or nil
	Offer      error      // why the device must not be handed out, or nil
	Health     error      // why the device is unhealthy, or nil
	// Fingerprint is by what the content of the disk is known again. It is empty if the disk was not read. Asked is the one that
	// the probe was to compare with.
	Fingerprint, Asked string
	Blank              bool      // the probe found nothing on the disk
	Size               int64     // of the disk in bytes, or 0 if it is not known
	Written            uint64    // to the disk, see [sysfs.Written], before it was probed
	Warning            string    // what the operator should see to though the device is healthy
	Unread             bool      // no helper answered what is on the disk and how it is
	Functions          []string  // sysfs paths of the PCI functions by which the device is reached
	Counters           []Counter // of errors
	Instance           uint64    // of the hardware in this boot, see [Host.Instance]
	objection          error     // against an offer, of which the rule may have overruled any
}

// HostUse reports whether this host uses the disk, by a mount or as swap. While a pod holds the disk, the pod may have made what
// is built on top of it. Otherwise the host did.
func (s *Sighting) HostUse(held bool) bool {
	var use hostUse
	return errors.As(s.Offer, &use) && (use.certain || !held)
}

// Twin notes that the device at another sysfs path has the same identity. A disk may be another way to the same medium, which
// two pods must not have, so it is not offered.
func (s *Sighting) Twin(other string) {
	if s.Target.IsDisk() && !errors.Is(s.Offer, errTwin) {
		s.Offer = joined(s.Offer, twin(path.Base(other)))
	}
}

// Look inspects one udev device. It finds the devices in it, the resources that they belong to, whether they may be offered and
// are healthy, and the nodes for a container. It reads sysfs and may block as long as the kernel does. It finds nothing in a udev
// device that is not a subject of any class. The sightings refer to seen, which nothing may write to.
func Look(h *Host, rules []Rule, seen *udev.Device) []Sighting {
	found, ok := lookAt(h, rules, withFunction(h, seen))
	if !ok {
		return nil
	}
	for i := range found {
		found[i].Device.group = nil // only the look needs it
	}
	return found
}

// lookAt is [Look]. If it finds no device, ok is false and the one sighting says why.
func lookAt(h *Host, rules []Rule, u *udev.Device) (found []Sighting, ok bool) {
	class := selecting(*u)
	unidentified := func(err error) []Sighting {
		return []Sighting{{Device: &Device{Class: class, SysPath: u.SysPath, NUMANode: -1, Udev: u}, Offer: err}}
	}
	identify := func() ([]Device, error) { return class.Identify(h, *u) }
	if class == nil {
		r, owner, _ := nodeRule(h, rules, *u)
		if r == nil {
			return unidentified(nil), false
		}
		class = &Generic
		if r.Group != nil {
			identify = func() ([]Device, error) { return identifyGroup(h, rules, r, owner, u) }
		}
	}
	if !h.Present(u.SysPath) {
		return unidentified(ErrGone), false
	}
	devices, err := identify()
	if err != nil {
		return unidentified(err), true
	}
	if len(devices) == 0 {
		return unidentified(errors.New("there is no device in it")), false
	}
	for _, d := range devices {
		d.Class, d.SysPath, d.Udev = class, u.SysPath, u
		found = append(found, look(h, rules, d))
	}
	return found, true
}

// look looks at one device that is identified.
func look(h *Host, rules []Rule, d Device) Sighting {
	rule, err := d.rule, error(nil)
	if rule == nil {
		rule, err = ruleFor(h, rules, d)
		d.rule = rule
	}
	s := Sighting{Device: &d, Instance: h.Instance(d.SysPath)}
	if d.Class.Offer != nil {
		s.Offer = d.Class.Offer(h, d)
	}
	if err != nil {
		s.objection = s.Offer
		if !unsuited(s.Offer) { // which says more
			s.Offer = err
		}
		found, _ := d.allocate(h) // a device that is not offered may lack nodes
		s.Nodes = found.Nodes
		return s
	}
	s.Resource = rule.Resource
	s.Health = d.Class.Health(h, d)
	usable, ok := s.Health.(warning) // not errors.As, since a warning that is joined to an error does not make a device usable
	if ok {
		s.Health = nil
	}
	s.Functions = functionsOf(h, d)
	pciHealth(h, &s)
	s.warn(string(usable))
	s.aim(h)
	if s.Target.IsDisk() {
		s.Written = sysfs.Written(&h.Tree, d.SysPath)
	}
	h.probe(&s, rule.AllowInUse)
	s.objection = s.Offer
	s.Offer = rule.forgive(s.Offer)
	s.Allocation, err = d.allocate(h)
	if err != nil {
		if s.Offer == nil || OnlyUnanswered(s.Offer) {
			s.Offer = err
		}
		s.Nodes, s.Allocation = s.Allocation.Nodes, Allocation{}
	}
	s.warn(reloadWarning(h, s.Allocation))
	return s
}

// selecting returns the class that has u as its subject, or nil. [Generic] takes any device with a node, but has a subject
// only where a rule asks for it.
func selecting(u udev.Device) *Class {
	if i := slices.IndexFunc(Classes, func(c *Class) bool { return c.Selects(u) }); i >= 0 {
		return Classes[i]
	}
	return nil
}
