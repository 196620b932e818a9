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

// Explain inspects a udev device in the same way as [Look] and explains the result in steps. If the udev device contains no
// device, Explain returns a single result whose device has no ID. Like Look, Explain may block.
func Explain(h *Host, rules []Rule, seen udev.Device) []Explained {
	found, _ := lookAt(h, rules, &seen)
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
	for _, f := range Look(&blind, rules, s.Device.Udev) {
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

// Unmatched compares patterns with the devices of a class among the given udev devices. Unmatched returns the first key whose
// pattern matches no device, and a text that lists the existing values or keys. If each pattern matches some device, but no
// device matches all patterns, the key is empty and the text names the device that matches best. If one device matches all
// patterns, both results are empty. Unmatched reads sysfs.
func Unmatched(h *Host, class *Class, seen []udev.Device, patterns map[string]string) (key, text string) {
	devices := identifyAll(h, class, seen)
	if len(devices) == 0 {
		return "", "this node has no device of class " + class.Name
	}
	most := -1
	fitting := make(map[string]bool)
	keys := slices.Sorted(maps.Keys(patterns))
	for _, d := range devices {
		count := 0
		for _, key := range keys {
			if value, ok := h.property(d, key); ok && matchesPattern(key, patterns[key], value) {
				fitting[key] = true
				count++
			}
		}
		if count > most {
			most, text = count, fmt.Sprintf("no device matches all keys; the nearest is %s: %v", d.ID, (&Rule{Match: patterns}).checkMatch(h, d))
		}
	}
	for _, key := range keys {
		if !fitting[key] {
			return key, fmt.Sprintf("no device of class %s has %s = %q; %s", class.Name, key, patterns[key], listExisting(h, devices, key))
		}
	}
	if most == len(keys) {
		return "", ""
	}
	return "", text
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

// listExisting lists the values that the devices have for a key. If no device has the key, listExisting lists the devices' keys.
// A device also has the keys that the kernel reports for its parents.
func listExisting(h *Host, devices []Device, key string) string {
	var values []string
	keys := map[string]bool{IDProperty: true}
	for _, d := range devices {
		if value, ok := h.property(d, key); ok {
			values = append(values, value)
		}
		for key := range d.Udev.Properties.All() {
			keys[key] = true
		}
		for above := range h.parents(*d.Udev) {
			for key := range h.Properties(above) {
				keys[key] = true
			}
		}
	}
	delete(keys, "MODALIAS")
	if len(values) > 0 {
		slices.Sort(values)
		return key + " is " + quoteValues(slices.Compact(values))
	}
	if _, isAttribute := AttrKey(key); isAttribute {
		return "their directories in /sys have no such file"
	}
	return "they have no " + key + ", but " + strings.Join(slices.Sorted(maps.Keys(keys)), " ")
}

// maxValues is the maximum number of values that a message lists.
const maxValues = 3

// quoteValues returns a text that quotes the first values and states how many others there are.
func quoteValues(values []string) string {
	var quoted []string
	for _, value := range values[:min(len(values), maxValues)] {
		quoted = append(quoted, fmt.Sprintf("%q", value))
	}
	text := strings.Join(quoted, " or ")
	if more := len(values) - len(quoted); more > 0 {
		text += fmt.Sprintf(" or one of %d others", more)
	}
	return text
}
