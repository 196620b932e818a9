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

// Step is one decision in the inspection of a device.
type Step struct {
	What string // "class", "identity", "offer", "rule", "health" or "nodes"
	Name string // name of the class or resource that was tried, or empty if the step tried neither
	OK   bool   // the step found no reason to withhold the device
	Why  string // human-readable result, or the condition that the device does not meet
	Rule string // resource of the rule that decided, or empty
	Key  string // key of the rule that decided: "match", "match.PCI_ID", "exclude.PCI_ID" or "name"
}

// Explained is the result of inspecting one device, together with the steps that led to this result.
type Explained struct {
	Sighting
	Steps []Step
}

// Explain inspects a udev device in the same way as [Inspect] and explains the result in steps. If the udev device contains no
// device, Explain returns a single result whose device has no ID. Like Inspect, Explain may block.
func Explain(h *Host, rules []Rule, seen udev.Device) []Explained {
	found, _ := inspectUdev(h, rules, &seen)
	all := make([]Explained, len(found))
	for i, s := range found {
		all[i].Sighting = s
		all[i].explain(h, rules)
	}
	return all
}

func (e *Explained) explain(h *Host, rules []Rule) {
	d := *e.Device
	e.explainClass(h, rules, *d.Udev)
	if d.ID == "" {
		if e.Offer != nil {
			e.add("identity", d.Class.Name, e.Offer, "")
		}
		return
	}
	e.add("identity", d.Class.Name, nil, strings.TrimRight("the ID is "+d.ID+", "+d.Model, ", "))
	if d.group != nil {
		e.addDecision("rule", d.rule.Resource, decision{rule: d.rule}, "it is a member of a group")
	} else {
		_, tries := tryRules(h, rules, d)
		for _, t := range tries {
			e.addDecision("rule", t.rule.Resource, t, "matches: "+t.rule.describe(h, d))
		}
		if len(tries) == 0 {
			e.add("rule", "", errUnconfigured(d.Class), "")
		}
	}
	if e.objection != nil && e.Offer == nil {
		e.add("offer", "", nil, fmt.Sprintf("%v: overruled by %s", e.objection, e.Resource))
	} else {
		e.add("offer", "", e.objection, "the device can be offered")
	}
	if e.Resource == "" {
		return
	}
	e.add("health", "", e.Health, strings.TrimRight("no fault is known; "+e.Warning, "; "))
	var names []string
	a, err := d.allocate(h)
	for _, n := range a.Nodes {
		names = append(names, n.Container)
	}
	e.add("nodes", "", err, strings.Join(names, " "))
}

// explainClass adds the step that shows a udev device's class. For class node, explainClass also adds a step for each rule that
// was tried.
func (e *Explained) explainClass(h *Host, rules []Rule, u udev.Device) {
	if c := ClassOf(u); c != nil {
		e.add("class", c.Name, nil, "the class matches: "+c.Doc)
		return
	}
	_, _, tries := nodeRule(h, rules, u)
	for _, t := range tries {
		if t.err != nil {
			t.err = fmt.Errorf("%s: %w", t.rule.Resource, t.err)
		}
		e.addDecision("class", Generic.Name, t, "requested by "+t.rule.Resource)
	}
	switch {
	case u.DevNode == "":
		e.add("class", Generic.Name, errors.New("the hardware has no device node"), "")
	case len(tries) == 0:
		e.add("class", Generic.Name, errUnconfigured(&Generic), "")
	}
}

// add adds a step that shows the text of err. If err is nil, the step shows the parameter "found".
func (e *Explained) add(what, name string, err error, found string) {
	if err != nil {
		found = err.Error()
	}
	e.Steps = append(e.Steps, Step{What: what, Name: name, OK: err == nil, Why: found})
}

// addDecision adds a step that shows a rule's decision.
func (e *Explained) addDecision(what, name string, t decision, found string) {
	e.add(what, name, t.err, found)
	s := &e.Steps[len(e.Steps)-1]
	s.Rule, s.Key = t.rule.Resource, "name"
	if unlike, ok := errors.AsType[mismatch](t.err); ok {
		s.Key = unlike.key
	} else if s.OK && len(t.rule.Match) > 0 {
		s.Key = "match"
	}
}

// Taker returns the first given rule that would take the device. If no rule would take it, Taker returns the reason as an error.
// Taker reads files in sysfs, but does not read disks.
func (s *Sighting) Taker(h *Host, rules []Rule) (*Rule, error) {
	blind := *h
	blind.Touch = Touch{}
	err := errors.New("no rule matches the device")
	for _, f := range Inspect(&blind, rules, s.Device.Udev) {
		switch {
		case s.Device.ID != "" && s.Device.ID != f.Device.ID: // f is another part of the same udev device
		case f.Offer == nil:
			return f.Device.rule, nil
		default:
			err = f.Offer
		}
	}
	return nil, err
}

// describe returns the keys and patterns that a rule uses to match a device, together with the matching values.
func (r *Rule) describe(h *Host, d Device) string {
	if len(r.Match) == 0 {
		return "every " + r.Class.Name
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(r.Match)) {
		value, _ := h.property(d, key)
		all = append(all, fmt.Sprintf("%s is %q (%q)", key, value, r.Match[key]))
	}
	return strings.Join(all, ", ")
}

// Unmatched compares patterns with the devices of a class among the given udev devices. If no device matches all patterns, the
// text describes the device that matches best, and key is the first key that this device does not match. If the node has no
// device of the class, the key is empty. If a device matches all patterns, both results are empty. Unmatched reads sysfs.
func Unmatched(h *Host, class *Class, seen []udev.Device, patterns map[string]string) (key, text string) {
	rule := Rule{Match: patterns}
	text = "this node has no device of class " + class.Name
	for _, d := range identifyAll(h, class, seen) {
		unlike, ok := errors.AsType[mismatch](rule.checkMatch(h, d))
		if !ok {
			return "", ""
		}
		first := strings.TrimPrefix(unlike.key, "match.")
		if first > key { // the keys are compared in sorted order, so this device matches more keys
			key, text = first, fmt.Sprintf("no device of class %s matches; the nearest is %s: %v", class.Name, d.ID, unlike)
		}
	}
	return key, text
}

// identifyAll identifies the devices of a class among the given udev devices, including devices that no rule takes.
func identifyAll(h *Host, class *Class, seen []udev.Device) (devices []Device) {
	for i := range seen {
		u := &seen[i]
		of := ClassOf(*u)
		if of != class && (of != nil || class != &Generic || u.DevNode == "") {
			continue
		}
		found, _ := class.Identify(h, *u) // after an error, Identify returns no device
		for _, d := range found {
			d.Class, d.Udev = class, u
			devices = append(devices, d)
		}
	}
	return devices
}
