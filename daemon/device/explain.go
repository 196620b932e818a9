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

// Step is one decision of a look about a device.
type Step struct {
	What string // "class", "identity", "offer", "rule", "health" or "nodes"
	Name string // of the class or the resource that was tried, or empty if there is no choice
	OK   bool   // the step does not keep the device back
	Why  string // for people, what was found or what is missing
	Rule string // the resource whose rule decided, or empty
	Key  string // the key of that rule which decided, "match", "match.PCI_ID", "exclude.PCI_ID" or "name"
}

// Explain looks at one udev device as [Look] does, and records the steps. Where Look finds nothing, Explain returns one
// sighting whose device has no ID. It blocks as Look does.
func Explain(h *Host, rules []Rule, seen udev.Device) []Sighting {
	found, _ := lookAt(h, rules, withFunction(h, &seen), new(trace))
	return found
}

// Taker returns the first of other rules that would take the device. The error says why none would. It reads sysfs and looks at
// no disk.
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

// trace records the steps of a look. A nil trace records nothing, so that a look without Explain makes no text.
type trace []Step

// fork returns a trace that begins with the same steps.
func (t *trace) fork() *trace {
	if t == nil {
		return nil
	}
	own := slices.Clip(*t)
	return &own
}

// steps returns the steps so far.
func (t *trace) steps() []Step {
	if t == nil {
		return nil
	}
	return *t
}

// add adds a step that ended with err or, if err is nil, with found.
func (t *trace) add(what, name string, err error, found string) {
	if t == nil {
		return
	}
	if err != nil {
		found = err.Error()
	}
	*t = append(*t, Step{What: what, Name: name, OK: err == nil, Why: found})
}

// rule adds the decision of a rule. It calls found if the rule takes the device.
func (t *trace) rule(what, name string, r *Rule, err error, found func() string) {
	if t == nil {
		return
	}
	s := Step{What: what, Name: name, OK: err == nil, Rule: r.Resource, Key: "name"}
	if err != nil {
		s.Why = err.Error()
	} else {
		s.Why = found()
	}
	if unlike, ok := errors.AsType[mismatch](err); ok {
		s.Key = unlike.key
	} else if err == nil && len(r.Match) > 0 {
		s.Key = "match"
	}
	*t = append(*t, s)
}

// asked adds the decision of a rule of class node about a udev device.
func (t *trace) asked(r *Rule, err error) {
	if err != nil && t != nil {
		err = fmt.Errorf("%s: %w", r.Resource, err)
	}
	t.rule("class", Generic.Name, r, err, func() string { return "asked for by " + r.Resource })
}

// looked adds the last steps of a look at a device that rule takes. offer is what was against the device before the rule.
func (t *trace) looked(s *Sighting, rule *Rule, offer error, a Allocation, nodes error) {
	if t == nil {
		return
	}
	if offer != nil && s.Offer == nil {
		t.add("offer", "", nil, fmt.Sprintf("%v: overruled by %s", offer, rule.Resource))
	} else {
		t.add("offer", "", offer, notAgainst)
	}
	t.add("health", "", s.Health, strings.TrimRight("the hardware is well; "+s.Warning, "; "))
	var names []string
	for _, n := range a.Nodes {
		names = append(names, n.Container)
	}
	t.add("nodes", "", nodes, strings.Join(names, " "))
}

const notAgainst = "nothing about the device itself is against it"

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
