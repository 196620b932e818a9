// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/bundle"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// resourceMatch lists the devices on the node that match a resource.
type resourceMatch struct {
	Resource string          `json:"resource"`
	Devices  []matchedDevice `json:"devices"` // devices that the resource gets
	Lost     []matchedDevice `json:"lost"`    // matching devices that an earlier resource gets
	// Unfilled explains why a bundle resource has no bundle, or why the key match or exclude selects no device. Without such a
	// problem, Unfilled is empty.
	Unfilled string `json:"unfilled,omitempty"`
	key      string // configuration key that Unfilled is about, such as "match.PCI_ID"
	excludes bool   // whether the exclude matches a device that the resource would otherwise get
}

// matchedDevice is a device in the output of check --explain.
type matchedDevice struct {
	ID string `json:"id"`
	By string `json:"by,omitempty"` // earlier resource that gets the device
	// Reason says why the device is not offered or why it is Unhealthy.
	Reason string `json:"reason,omitempty"`
}

// matchResources assigns all devices to the resources, in the order of the configuration. The devices are those of the node or of
// the configured recording. matchResources reads the same files as metalplugd and changes nothing.
func matchResources(c config.Config) (all []resourceMatch, unclaimed []matchedDevice, err error) {
	devices, host, done, err := hardware(c)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	rules := c.Rules()
	all = make([]resourceMatch, len(rules))
	for i, r := range rules {
		all[i] = resourceMatch{Resource: r.Resource, Devices: []matchedDevice{}, Lost: []matchedDevice{}}
	}
	var seen []device.Sighting
	for _, u := range devices {
		found := device.Look(host, rules, &u)
		seen = append(seen, found...)
		for _, s := range found {
			if s.Resource == "" {
				unclaimed = append(unclaimed, matchedDevice{ID: cmp.Or(s.Device.ID, s.Device.SysPath), Reason: reason(s)})
			}
			// takes is true if an earlier rule has already taken the device.
			takes := false
			for i, r := range rules {
				all[i].excludes = all[i].excludes || excludes(host, r, u, s.Device.ID)
				switch {
				case s.Resource == r.Resource:
					takes = true
					all[i].Devices = append(all[i].Devices, matchedDevice{ID: s.Device.ID, Reason: reason(s)})
				case takes && matchesToo(host, r, u, s.Device.ID):
					all[i].Lost = append(all[i].Lost, matchedDevice{ID: s.Device.ID, By: s.Resource})
				}
			}
		}
	}
	for i, r := range rules {
		all[i].compare(r, c.Resources[i].Optional, func(patterns map[string]string) (key, text string) {
			return device.Unmatched(host, r.Class, devices, patterns)
		})
		if r.Bundle != nil {
			var ids []string
			ids, all[i].Unfilled = bundle.Seen(r.Bundle, seen)
			for _, id := range ids {
				all[i].Devices = append(all[i].Devices, matchedDevice{ID: id})
			}
		}
	}
	byID := func(a, b matchedDevice) int { return strings.Compare(a.ID, b.ID) }
	slices.SortFunc(unclaimed, byID)
	for i := range all {
		slices.SortFunc(all[i].Devices, byID)
		slices.SortFunc(all[i].Lost, byID)
	}
	return all, unclaimed, nil
}

// compare sets t.Unfilled if the "match" or "exclude" patterns of a rule match no device. The parameter "unmatched" is a function
// that returns the result of [device.Unmatched].
func (t *resourceMatch) compare(r device.Rule, builtin bool, unmatched func(patterns map[string]string) (key, text string)) {
	key, text := "", ""
	switch {
	case builtin || r.Bundle != nil:
		return
	case len(t.Devices) == 0 && t.excludes:
		t.key, text = "exclude", "every device selected by match is also excluded"
	case len(t.Devices) == 0 && r.Group != nil:
		t.key = "group"
		for _, node := range r.Group.Nodes {
			if key, text = unmatched(map[string]string{"DEVNAME": node}); text != "" {
				key = ""
				break
			}
		}
	case len(t.Devices) == 0 && len(t.Lost) == 0:
		t.key = "match"
		key, text = unmatched(r.Match)
	case t.explainIdle() == "" && len(r.Exclude) > 0 && !t.excludes:
		t.key = "exclude"
		key, text = unmatched(r.Exclude)
	}
	if t.Unfilled = text; key != "" {
		pattern := map[string]map[string]string{"match": r.Match, "exclude": r.Exclude}[t.key][key]
		if remedy := mistake(key, pattern); remedy != "" { // this remedy helps more than a suggested pattern
			t.Unfilled = fmt.Sprintf("no device of class %s has %s = %q; %s", r.Class.Name, key, pattern, remedy)
		}
		t.key += "." + key
	}
}

// explainIdle explains why the resource gets no usable device, or returns "" if it gets one.
func (t resourceMatch) explainIdle() string {
	switch {
	case slices.ContainsFunc(t.Devices, func(d matchedDevice) bool { return d.Reason == "" }):
		return ""
	case len(t.Devices) > 0:
		return t.Devices[0].ID + ": " + t.Devices[0].Reason
	case t.Unfilled != "":
		return t.Unfilled
	case len(t.Lost) > 0:
		return t.Lost[0].By + " comes first and gets the devices"
	}
	return "no present device matches"
}

// mistakes describes patterns that are valid but probably wrong, and how to correct them. For each pattern, only the first
// matching entry counts. An entry with a key applies to that property, and an entry without a key applies to all properties. If
// the entry has no remedy, the pattern is correct.
var mistakes = []struct {
	key     string
	pattern *regexp.Regexp
	remedy  string
}{
	{"", regexp.MustCompile(`^$`), "an empty pattern matches nothing"},
	{"", regexp.MustCompile(`^\^|\$$|\.\+|\]\+|\\[dws]|\(.*\|.*\)|\(\?|^!|\{.*,.*\}| \||\| `), "the pattern looks like a regular expression or a list; write a " +
		"shell pattern, with * for any text, ? for one character and | without spaces between alternatives"},
	{"DEVPATH", regexp.MustCompile(`(^|\|)/?\*+($|\|)`), "the pattern matches every device node; add a property of the intended devices"},
	{"DEVNAME", regexp.MustCompile(`(^|\|)(/dev/?)?\*+($|\|)`), "the pattern matches every device node; write the paths of the intended nodes"},
	{"DEVNAME", regexp.MustCompile(`(^|\|)[^/*?[|]`), `write the path, as in "/dev/kvm"`},
	{"DEVNAME", regexp.MustCompile(`.`), ""}, // this pattern is not a mistake, because names of device nodes may contain dots
	{"PCI_SLOT_NAME", regexp.MustCompile(`(^|\|)[0-9a-f]{2}:[0-9a-f]{2}\.[0-7*?[]`), `write the domain too, as in "0000:18:00.0"`},
	{"PCI_ID", regexp.MustCompile(`(?i)0x|(^|\|)[0-9a-f]{4}($|\|)`), `write VENDOR:DEVICE, as in "10DE:2330" or "10DE:*"`},
	{"", regexp.MustCompile(`\.\*`), "the pattern looks like a regular expression; write * for any text"},
}

// mistake returns the remedy for a pattern that is probably a mistake, and "" for any other pattern.
func mistake(key, pattern string) string {
	for _, m := range mistakes {
		if (m.key == "" || m.key == key) && m.pattern.MatchString(pattern) {
			return m.remedy
		}
	}
	return ""
}

// reason explains why pods cannot use a device now, or returns "" if they can.
func reason(s device.Sighting) string {
	if err := cmp.Or(s.Offer, s.Health); err != nil {
		return err.Error()
	}
	return ""
}

// matchesToo reports whether a rule would match a device if there were no other rules.
func matchesToo(h *device.Host, r device.Rule, u udev.Device, id string) bool {
	return slices.ContainsFunc(device.Look(h, []device.Rule{r}, &u), func(s device.Sighting) bool {
		return s.Device.ID == id && s.Resource == r.Resource
	})
}

// excludes reports whether a rule fails to match a device only because of its exclude.
func excludes(h *device.Host, r device.Rule, u udev.Device, id string) bool {
	without := r
	without.Exclude = nil
	return len(r.Exclude) > 0 && matchesToo(h, without, u, id) && !matchesToo(h, r, u, id)
}

// resourceMatch writes a list of the devices that match a resource.
func (s *screen) resourceMatch(t resourceMatch) {
	text := fmt.Sprintf("devices: %d", len(t.Devices))
	if len(t.Devices) == 0 {
		text += "; " + t.explainIdle()
	}
	s.line(t.Resource+"  ", bold, text)
	for _, d := range t.Devices {
		if d.Reason != "" {
			d.ID += ": not available to pods: " + d.Reason
		}
		s.line("  ", "", d.ID)
	}
	for _, d := range t.Lost {
		s.line("  -- ", yellow, d.ID+": "+d.By+" comes first and gets this device")
	}
}
