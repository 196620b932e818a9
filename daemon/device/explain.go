// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// Step is one thing that a look decides about a device.
type Step struct {
	What string // "class", "identity", "offer", "rule", "health" or "nodes"
	Name string // of the class or the resource that was tried; empty where there is no choice
	OK   bool   // it does not keep the device back
	Why  string // for people: what was found, or what is missing
	Rule string // the resource whose rule has decided; empty: none has
	Key  string // of that rule, by which it has: "match" or "exclude", mostly with the property, "match.PCI_ID"; else "name"
}

// Explanation is how [Look] comes to its result, in the order in which it decides.
type Explanation struct {
	Sighting
	Steps []Step
}

// Explain looks at one udev device as [Look] does and tells every step. Where there is nothing to offer, there is one
// explanation, whose device has no ID. It blocks as Look does.
func Explain(h *Host, rules []Rule, u udev.Device) []Explanation {
	u = *withFunction(h, &u)
	nothing := Explanation{Sighting: Sighting{Device: &Device{SysPath: u.SysPath, NUMANode: -1, Udev: &u}}}
	class := selecting(u)
	var rule *Rule
	var owner string
	if class == nil {
		if rule, owner = nodeRule(h, rules, u); rule != nil {
			class = &Generic
		}
	}
	nothing.Device.Class, nothing.Steps = class, classSteps(h, rules, u, class)
	switch {
	case class == nil:
		return []Explanation{nothing}
	case !h.Present(u.SysPath):
		nothing.Offer = ErrGone
		nothing.add("identity", "", ErrGone, "")
		return []Explanation{nothing}
	}
	if rule != nil && rule.Group != nil {
		return []Explanation{nothing.group(rule, lookGroup(h, rules, rule, owner, &u))}
	}
	devices, err := class.Identify(h, u)
	if err == nil && len(devices) == 0 {
		err = errors.New("there is no device in it")
	}
	if err != nil {
		nothing.Offer = err
		nothing.add("identity", class.Name, err, "")
		return []Explanation{nothing}
	}
	all := make([]Explanation, 0, len(devices))
	for _, d := range devices {
		d.Class, d.SysPath, d.Udev = class, u.SysPath, &u
		e := Explanation{Sighting: look(h, rules, d), Steps: slices.Clone(nothing.Steps)}
		e.tell(h, rules)
		all = append(all, e)
	}
	return all
}

// Taker returns the first of other rules that would take what is explained; the error tells why none would. It reads sysfs
// and looks at no disk.
func (e Explanation) Taker(h *Host, rules []Rule) (*Rule, error) {
	if e.Device.Class != nil {
		return ruleFor(h, rules, *e.Device)
	}
	u := *e.Device.Udev
	if err := barred(u); err != nil {
		return nil, err
	}
	r, _ := nodeRule(h, rules, u)
	if r == nil {
		return nil, errors.New("no rule is about it")
	}
	if err := r.forgive(nodeOffer(h, Device{Class: &Generic, SysPath: u.SysPath, Udev: &u, rule: r})); err != nil {
		return nil, err
	}
	return r, nil
}

// group tells of a member of a group: what stands for the group is looked at once, and the others are parts of it.
func (e Explanation) group(rule *Rule, s Sighting) Explanation {
	e.Sighting = s
	e.add("rule", s.Resource, nil, "it is a member of a group")
	e.by(rule, nil)
	e.add("offer", "", s.Offer, "nothing keeps the group from being handed out")
	e.add("health", "", s.Health, strings.TrimRight("the hardware is well; "+s.Warning, "; "))
	return e
}

// takes tells why a rule of class node does not take a udev device, nil: it does, as a device or as the member of a group.
func (r *Rule) takes(h *Host, u udev.Device) error {
	if r.Group == nil {
		return r.matches(h, withID([]Rule{*r}, u, func() string { return nodeID(h, u) }))
	}
	if _, ok := r.groupOf(h, u); !ok {
		return errors.New("no member of its group")
	}
	return nil
}

// add adds a step that ended with err or, if that is nil, with what is said.
func (e *Explanation) add(what, name string, err error, said string) {
	s := Step{What: what, Name: name, OK: err == nil, Why: said}
	if err != nil {
		s.Why = err.Error()
	}
	e.Steps = append(e.Steps, s)
}

// by notes that the last step is the decision of a rule, which err is about.
func (e *Explanation) by(r *Rule, err error) {
	s := &e.Steps[len(e.Steps)-1]
	var unlike mismatch
	switch s.Rule, s.Key = r.Resource, "name"; {
	case errors.As(err, &unlike):
		s.Key = unlike.key
	case err == nil && len(r.Match) > 0:
		s.Key = "match"
	}
}

// classSteps tells which classes were tried. The generic one is tried rule by rule.
func classSteps(h *Host, rules []Rule, u udev.Device, taken *Class) []Step {
	var e Explanation
	for _, c := range Classes {
		if c == &Generic {
			break
		}
		if c == taken {
			e.add("class", c.Name, nil, "it stands for a device of this class: "+c.Doc)
			return e.Steps
		}
		e.add("class", c.Name, fmt.Errorf("subsystem %q, devtype %q is none of its devices", u.Subsystem, u.DevType), "")
	}
	if u.DevNode == "" {
		e.add("class", Generic.Name, errors.New("it has no device node"), "")
		return e.Steps
	}
	asked := false
	for i := range rules {
		if rules[i].Class != &Generic {
			continue
		}
		asked = true
		err := rules[i].takes(h, u)
		e.add("class", Generic.Name, wrapped(rules[i].Resource, err), "asked for by "+rules[i].Resource)
		e.by(&rules[i], err)
		if err == nil {
			return e.Steps
		}
	}
	if !asked {
		e.add("class", Generic.Name, errors.New("no resource of class node is configured"), "")
	}
	return e.Steps
}

// wrapped returns err with what it is about; nil for no error.
func wrapped(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// tell adds the steps that follow once a device is identified. It asks what look asked a moment ago once more, for look
// keeps only what comes of it; nothing of that is expensive.
func (e *Explanation) tell(h *Host, rules []Rule) {
	d := *e.Device
	e.add("identity", d.Class.Name, nil, strings.TrimRight("it is "+d.ID+", "+d.Model, ", "))
	var offer error
	if d.Class.Offer != nil {
		offer = d.Class.Offer(h, d)
	}
	rule := e.tellRules(h, rules)
	switch {
	case rule != nil && offer != nil && rule.forgive(offer) == nil:
		e.add("offer", "", nil, fmt.Sprintf("%v: overruled by %s", offer, rule.Resource))
	default:
		e.add("offer", "", offer, "nothing about the device itself is against it")
	}
	if rule == nil {
		return
	}
	e.add("health", "", e.Health, strings.TrimRight("the hardware is well; "+e.Warning, "; "))
	if _, err := d.Class.Allocate(h, d); err != nil {
		e.add("nodes", "", err, "")
		return
	}
	var names []string
	for _, n := range e.Allocation.Nodes {
		names = append(names, n.Container)
	}
	e.add("nodes", "", nil, strings.Join(names, " "))
}

// tellRules adds a step for each rule of the class until one takes the device, which it returns; nil: none does.
func (e *Explanation) tellRules(h *Host, rules []Rule) *Rule {
	tried, u := false, e.Device.asRulesSee(rules)
	for i := range rules {
		r := &rules[i]
		if r.Class != e.Device.Class || r.Group != nil {
			continue
		}
		tried = true
		err := r.matches(h, u)
		e.add("rule", r.Resource, err, "matches: "+r.describe(h, u))
		e.by(r, err)
		if err == nil {
			return r
		}
	}
	if !tried {
		e.add("rule", "", fmt.Errorf("no resource of class %s is configured", e.Device.Class.Name), "")
	}
	return nil
}

// describe tells by what a rule matches that does.
func (r *Rule) describe(h *Host, u udev.Device) string {
	if len(r.Match) == 0 {
		return "every " + r.Class.Name
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(r.Match)) {
		value, _ := h.property(u, key)
		all = append(all, fmt.Sprintf("%s is %q (%q)", key, value, r.Match[key]))
	}
	return strings.Join(all, ", ")
}
