// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// trait is one name of a device, with the pattern that matches the device by this name.
type trait struct {
	key, text string // the property, and its value or another name that an operator may write for the device
	write     string // the pattern to write for key
}

// alias reports whether the text is another name, and not the value of the property.
func (t trait) alias() bool { return t.text != t.write }

// Population is the devices of a node that belong to one class, whether a rule takes them or not.
type Population struct {
	host    *Host
	class   *Class
	devices []matched
	traits  []trait        // of all devices, without repetition
	has     map[trait]bool // the same traits
	names   map[string]int // number of devices with a node or kernel name
}

// NewPopulation identifies the devices of a class. It reads sysfs.
func NewPopulation(h *Host, class *Class, seen []udev.Device) *Population {
	p := &Population{host: h, class: class, has: make(map[trait]bool), names: make(map[string]int)}
	for i := range seen {
		u := withFunction(h, &seen[i])
		of := selecting(*u)
		if of != class && (of != nil || class != &Generic || u.DevNode == "") {
			continue
		}
		found, err := class.Identify(h, *u)
		if err != nil {
			continue
		}
		for _, d := range found {
			d.Class, d.SysPath, d.Udev = class, u.SysPath, u
			p.add(d)
		}
	}
	// A name that several devices have, such as /dev/nvidiactl, selects none of them.
	p.traits = slices.DeleteFunc(p.traits, func(t trait) bool { return t.alias() && p.names[t.text] > 1 })
	return p
}

// add adds a device and its traits.
func (p *Population) add(d Device) {
	p.devices = append(p.devices, d.matched())
	traits := []trait{{IDProperty, d.ID, d.ID}}
	names := []string{path.Base(d.SysPath)}
	if d.Class != &Generic { // a device of class node has DEVNAME
		found, _ := d.allocate(p.host)
		for _, n := range found.Nodes {
			names = append(names, n.Container)
		}
	}
	for _, name := range names {
		p.names[name]++
		traits = append(traits, trait{IDProperty, name, d.ID})
	}
	if d.Part != "" {
		traits = append(traits, trait{partProperty, d.Part, d.Part})
	}
	known := map[string]bool{"DEVPATH": true, "MODALIAS": true}
	for key, value := range d.Udev.Properties.All() {
		known[key] = true
		if key == "DEVLINKS" {
			for _, link := range strings.Fields(value) {
				traits = append(traits, trait{key, link, "*" + link + "*"})
			}
			continue
		}
		traits = append(traits, trait{key, value, value})
	}
	for above := range sysfs.Up(path.Dir(d.SysPath)) {
		of := p.host.Properties(above)
		for _, key := range slices.Sorted(maps.Keys(of)) {
			if !known[key] {
				known[key] = true
				traits = append(traits, trait{key, of[key], of[key]})
			}
		}
	}
	for _, t := range traits {
		if t.text != "" && len(t.text) <= 128 && !p.has[t] {
			p.has[t] = true
			p.traits = append(p.traits, t)
		}
	}
}

// Unmatched returns the first key whose pattern matches no device, and a text with the nearest pattern that does match. If
// each key matches some device, key is empty, and the text names the device that matches the most keys. The text is empty if
// one device matches all keys.
func (p *Population) Unmatched(patterns map[string]string) (key, text string) {
	if len(p.devices) == 0 {
		return "", "this node has no device of class " + p.class.Name
	}
	best, most, wrong := "", -1, ""
	fitting := make(map[string]bool)
	keys := slices.Sorted(maps.Keys(patterns))
	for _, u := range p.devices {
		count, first := 0, ""
		for _, key := range keys {
			value, ok := p.host.property(u, key)
			if ok && fits(key, patterns[key], value) {
				fitting[key] = true
				count++
			} else if first == "" {
				first = fmt.Sprintf("%s is %q, not %q", key, value, patterns[key])
				if !ok {
					first = "it has no " + key
				}
			}
		}
		if count > most {
			best, most, wrong = u.id(), count, first
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
	return "", fmt.Sprintf("no device matches all keys; the nearest is %s: %s", best, wrong)
}

// maxValues is the maximum number of values in a message.
const maxValues = 3

// nearest returns the end of a message about a pattern that no device matches. It suggests another pattern, or lists the
// values that exist.
func (p *Population) nearest(key, pattern string) string {
	best, least := trait{}, -1
	var values, keys []string
	for _, t := range p.traits {
		if t.key == key && !t.alias() {
			values = append(values, t.text)
		}
		if !slices.Contains(keys, t.key) {
			keys = append(keys, t.key)
		}
		for alternative := range strings.SplitSeq(pattern, "|") {
			cost, write := resemblance(key, alternative, t)
			if cost >= 0 && (least < 0 || cost < least) {
				best, least = trait{key: t.key, write: write}, cost
			}
		}
	}
	slices.Sort(values)
	switch name, isAttribute := AttrKey(key); {
	case least >= 0:
		return fmt.Sprintf("; did you mean %s = %q?", best.key, best.write)
	case isAttribute:
		return p.nearestAttribute(key, name)
	case key == partProperty && len(values) == 0:
		return "; none of them has parts, such as MIG devices"
	case len(values) > 0:
		return "; " + key + " is " + some(values)
	}
	if near := closest(keys, key); near != "" {
		return "; did you mean the key " + near + "?"
	}
	slices.Sort(keys)
	return "; they have no " + key + ", but " + strings.Join(keys, " ")
}

// nearestAttribute is like nearest, for an attribute in sysfs.
func (p *Population) nearestAttribute(key, name string) string {
	var values, names []string
	for _, u := range p.devices {
		if value, ok := p.host.property(u, key); ok && !slices.Contains(values, value) {
			values = append(values, value)
		}
		names = append(names, p.host.Names(u.SysPath)...)
	}
	if len(values) > 0 {
		return "; " + key + " is " + some(values)
	}
	if near := closest(names, name); near != "" {
		return fmt.Sprintf("; did you mean \"ATTR{%s}\"?", near)
	}
	return "; their directories in /sys have no such file"
}

// closest returns the first of the names that differs least from another name, or "" if all differ in more than two letters.
func closest(names []string, name string) (near string) {
	least := 3
	for _, n := range names {
		if d := Edits(fold(n), fold(name)); d < least {
			near, least = n, d
		}
	}
	return near
}

// some quotes a few of the values.
func some(values []string) string {
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

// resemblance compares a name with a pattern without alternatives. It returns the cost of the difference, and the pattern to
// write instead. The cost is negative if the two are not similar. The name of another key must equal the pattern, or begin
// like it.
func resemblance(key, pattern string, t trait) (cost int, write string) {
	// The costs of the ways in which a name can resemble a pattern. otherKey is added if the key is different.
	const equal, fitting, suffix, otherKey, prefix, within, misspelt = 0, 1, 2, 3, 12, 20, 40
	const short = 3 // many names begin with a shorter text
	wanted, is := fold(pattern), fold(t.text)
	if t.key != key {
		cost = otherKey + min(Edits(fold(t.key), fold(key)), prefix-otherKey-3)
	}
	if t.alias() {
		cost++
	}
	same := t.key == key
	switch bare := strings.Trim(pattern, "*"); {
	case len(wanted) == 0 || !same && len(wanted) < short:
	case wanted == is:
		return cost + equal, t.write
	case t.alias() && t.key == "DEVLINKS" && udev.Glob(pattern, t.text):
		return cost + fitting, "*" + bare + "*"
	case !same && !t.alias() && udev.Glob(pattern, t.text):
		return cost + fitting, pattern
	case same && len(wanted) >= short && strings.HasSuffix(is, wanted):
		return cost + suffix, t.write
	case strings.HasPrefix(is, wanted) && !t.alias():
		return cost + prefix, beginning(t.text, len(wanted))
	case len(wanted) < short || !strings.HasPrefix(t.key, key):
	case udev.Glob("*"+bare+"*", t.text):
		return cost + within, "*" + bare + "*"
	case strings.Contains(is, wanted):
		return cost + within, t.write
	case !same:
	case bare != pattern && len(is) > len(wanted) && isMisspelt(wanted, is[:len(wanted)]):
		return misspelt + Edits(is[:len(wanted)], wanted), beginning(t.text, len(wanted))
	case isMisspelt(wanted, is):
		return misspelt + Edits(is, wanted), t.write
	}
	return -1, ""
}

// isMisspelt reports whether two texts differ in few letters. Short texts with different numbers, such as the names of
// nodes, probably belong to different devices.
func isMisspelt(text, other string) bool {
	const long = 16
	withoutDigits := func(text string) string { return strings.Join(strings.FieldsFunc(text, unicode.IsDigit), "") }
	return Edits(text, other) <= min(2, len(text)/3) && (len(text) >= long || withoutDigits(text) != withoutDigits(other))
}

// beginning returns a pattern for texts that begin like text, up to the given number of letters and digits.
func beginning(text string, letters int) string {
	for i, r := range text {
		if letters == 0 {
			return text[:i] + "*"
		}
		if fold(string(r)) != "" {
			letters--
		}
	}
	return text
}

// fold returns the letters and digits of a text in lower case, without the marks of patterns, regular expressions and hexadecimal
// numbers.
func fold(text string) string {
	return strings.Join(strings.FieldsFunc(strings.TrimPrefix(strings.ToLower(text), "0x"), func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}), "")
}

// Edits returns the number of letters to insert, remove, replace or swap with the next one that changes a to b.
func Edits(a, b string) int {
	cost := make([][]int, len(a)+1) // of the first i letters of a and the first j of b
	for i := range cost {
		cost[i] = make([]int, len(b)+1)
		for j := range cost[i] {
			switch {
			case i == 0 || j == 0:
				cost[i][j] = i + j
			case a[i-1] == b[j-1]:
				cost[i][j] = cost[i-1][j-1]
			default:
				cost[i][j] = 1 + min(cost[i-1][j], cost[i][j-1], cost[i-1][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cost[i][j] = min(cost[i][j], cost[i-2][j-2]+1)
			}
		}
	}
	return cost[len(a)][len(b)]
}
