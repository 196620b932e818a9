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

// errNoDevice: a subject of a class has no device in it.
var errNoDevice = errors.New("there is no device in it")

// Explain looks at one udev device as [Look] does, and returns its steps with what it finds. Where Look finds nothing,
// there is one sighting, whose device has no ID. It blocks as Look does.
func Explain(h *Host, rules []Rule, seen udev.Device) []Sighting {
	u, t := withFunction(h, &seen), new(trace)
	found := lookAt(h, rules, u, t)
	if len(found) == 0 {
		d := &Device{Class: t.class, SysPath: u.SysPath, NUMANode: -1, Udev: u}
		found = []Sighting{{Device: d, Offer: t.err, Steps: t.steps}}
	}
	return found
}

// Taker returns the first of other rules that would take the device; the error is the reason why none would. It reads
// sysfs and looks at no disk.
func (s *Sighting) Taker(h *Host, rules []Rule) (*Rule, error) {
	if s.Device.Class != nil {
		return ruleFor(h, rules, *s.Device, nil)
	}
	u := *s.Device.Udev
	if err := barred(u); err != nil {
		return nil, err
	}
	r, _ := nodeRule(h, rules, u, nil)
	if r == nil {
		return nil, errors.New("no rule is about it")
	}
	if err := r.forgive(nodeOffer(h, Device{Class: &Generic, SysPath: u.SysPath, Udev: &u, rule: r})); err != nil {
		return nil, err
	}
	return r, nil
}

// trace records the steps of a look. A nil trace records nothing.
type trace struct {
	steps []Step
	class *Class // where the look found nothing: the class that selects the udev device, or nil
	err   error  // and why it found nothing
}

// fork returns a trace that begins with the same steps.
func (t *trace) fork() *trace {
	if t == nil {
		return nil
	}
	return &trace{steps: slices.Clip(t.steps)}
}

// add adds a step that ended with err or, if that is nil, with found.
func (t *trace) add(what, name string, err error, found string) {
	if t == nil {
		return
	}
	s := Step{What: what, Name: name, OK: err == nil, Why: found}
	if err != nil {
		s.Why = err.Error()
	}
	t.steps = append(t.steps, s)
}

// nothing adds why there is no device in a subject of a class.
func (t *trace) nothing(class *Class, err error) {
	if t != nil {
		t.class, t.err = class, err
		t.add("identity", class.Name, err, "")
	}
}

// rule adds the decision of a rule; found is called if it takes the device.
func (t *trace) rule(what, name string, r *Rule, err error, found func() string) {
	if t == nil {
		return
	}
	s := Step{What: what, Name: name, OK: err == nil, Rule: r.Resource, Key: "name"}
	var unlike mismatch
	switch {
	case err == nil && len(r.Match) > 0:
		s.Why, s.Key = found(), "match"
	case err == nil:
		s.Why = found()
	case errors.As(err, &unlike):
		s.Why, s.Key = err.Error(), unlike.key
	default:
		s.Why = err.Error()
	}
	t.steps = append(t.steps, s)
}

// asked adds the decision of a rule of class node about a udev device.
func (t *trace) asked(r *Rule, err error) {
	if err != nil && t != nil {
		err = fmt.Errorf("%s: %w", r.Resource, err)
	}
	t.rule("class", Generic.Name, r, err, func() string { return "asked for by " + r.Resource })
}

// offer adds what is against handing the device out, and what is left of that after a rule, which may be nil.
func (t *trace) offer(r *Rule, offer, left error) {
	if t == nil {
		return
	}
	if offer != nil && left == nil {
		t.add("offer", "", nil, fmt.Sprintf("%v: overruled by %s", offer, r.Resource))
		return
	}
	t.add("offer", "", offer, "nothing about the device itself is against it")
}

// nodes adds the nodes that a container would get.
func (t *trace) nodes(a Allocation, err error) {
	if t == nil {
		return
	}
	var names []string
	for _, n := range a.Nodes {
		names = append(names, n.Container)
	}
	t.add("nodes", "", err, strings.Join(names, " "))
}

// describe returns by what a rule matches that takes a device.
func (r *Rule) describe(h *Host, u matched) string {
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
