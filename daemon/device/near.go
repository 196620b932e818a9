// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/metalplug/metalplug/udev"
)

// Population is the set of all devices of one class on this machine. Population includes devices that no rule takes.
type Population struct {
	host    *Host
	class   *Class
	devices []Device
}

// NewPopulation identifies the devices of a class among the given udev devices. NewPopulation reads sysfs.
func NewPopulation(h *Host, class *Class, seen []udev.Device) *Population {
	p := &Population{host: h, class: class}
	for i := range seen {
		u := &seen[i]
		of := ClassOf(*u)
		if of != class && (of != nil || class != &Generic || u.DevNode == "") {
			continue
		}
		found, _ := class.Identify(h, *u) // after an error, Identify returns no device
		for _, d := range found {
			d.Class, d.Udev = class, u
			p.devices = append(p.devices, d)
		}
	}
	return p
}

// Unmatched returns the first key whose pattern matches no device, and a text that suggests a similar pattern. If each pattern
// matches some device, but no device matches all patterns, the key is empty and the text names the nearest device. If one device
// matches all patterns, both results are empty.
func (p *Population) Unmatched(patterns map[string]string) (key, text string) {
	if len(p.devices) == 0 {
		return "", "this node has no device of class " + p.class.Name
	}
	most := -1
	fitting := make(map[string]bool)
	keys := slices.Sorted(maps.Keys(patterns))
	for _, d := range p.devices {
		count := 0
		for _, key := range keys {
			if value, ok := p.host.property(d, key); ok && matchesPattern(key, patterns[key], value) {
				fitting[key] = true
				count++
			}
		}
		if count > most {
			most, text = count, fmt.Sprintf("no device matches all keys; the nearest is %s: %v", d.ID, (&Rule{Match: patterns}).matches(p.host, d))
		}
	}
	for _, key := range keys {
		if !fitting[key] {
			return key, fmt.Sprintf("no device of class %s has %s = %q%s", p.class.Name, key, patterns[key], p.nearest(key, patterns[key]))
		}
	}
	if most == len(keys) {
		return "", ""
	}
	return "", text
}

// nearest returns the end of a message about a pattern that no device matches. The message suggests another pattern, or lists the
// existing values or keys.
func (p *Population) nearest(key, pattern string) string {
	all := p.properties(key)
	keys := slices.Sorted(maps.Keys(all))
	for _, alike := range []func(value, wanted string) bool{func(value, wanted string) bool { return value == wanted }, strings.Contains} {
		for _, other := range slices.Concat([]string{key}, keys) {
			for _, value := range all[other] {
				if alternative := resembling(pattern, value, alike); alternative != "" {
					return fmt.Sprintf("; did you mean %s = %q?", other, alternative)
				}
			}
		}
	}
	if values := all[key]; len(values) > 0 {
		return "; " + key + " is " + quoteValues(values)
	}
	if _, isAttribute := AttrKey(key); isAttribute {
		return "; their directories in /sys have no such file"
	}
	return "; they have no " + key + ", but " + strings.Join(keys, " ")
}

// properties returns the sorted values of all properties of the devices, by key. The result includes the given key, which may
// name an attribute in sysfs. If a device lacks a property, the device counts with the value that the kernel reports for the
// nearest parent.
func (p *Population) properties(key string) map[string][]string {
	all := make(map[string][]string)
	for _, d := range p.devices {
		own := maps.Collect(d.Udev.Properties.All())
		for above := range p.host.parents(*d.Udev) {
			for key, value := range p.host.Properties(above) {
				if _, nearer := own[key]; !nearer {
					own[key] = value
				}
			}
		}
		own[IDProperty] = d.ID
		if value, ok := p.host.property(d, key); ok {
			own[key] = value
		}
		delete(own, "MODALIAS")
		for key, value := range own {
			all[key] = append(all[key], value)
		}
	}
	for key, values := range all {
		slices.Sort(values)
		all[key] = slices.Compact(values)
	}
	return all
}

// resembling returns a pattern for the value of a property, if one of the alternatives in the given pattern resembles this value.
// Otherwise, resembling returns "". Before the function "alike" compares two texts, resembling removes all characters except
// letters and digits.
func resembling(pattern, value string, alike func(value, wanted string) bool) string {
	const short = 3 // a shorter text is part of too many values
	for alternative := range strings.SplitSeq(pattern, "|") {
		wanted := fold(alternative)
		if len(wanted) < short || !alike(fold(value), wanted) {
			continue
		}
		around := "*" + strings.Trim(alternative, "*") + "*"
		switch {
		case fold(value) == wanted:
			return value
		case udev.Glob(alternative, value):
			return alternative
		case udev.Glob(around, value):
			return around
		}
		return value
	}
	return ""
}

// maxValues is the maximum number of values that a message lists.
const maxValues = 3

// quoteValues returns a text that quotes the first values and contains the number of the others.
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

// fold converts a text to lower case and removes everything except ASCII letters and digits. fold also removes a leading 0x.
func fold(text string) string {
	return strings.Join(strings.FieldsFunc(strings.TrimPrefix(strings.ToLower(text), "0x"), func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}), "")
}
