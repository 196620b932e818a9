// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// Unmatched compares patterns with the devices of a class among the given udev devices. Unmatched returns the first key whose
// pattern matches no device, and a text that lists the existing values or keys. If each pattern matches some device, but no device
// matches all patterns, the key is empty and the text names the nearest device. If one device matches all patterns, both results
// are empty. Unmatched reads sysfs.
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

// listExisting lists the values that the devices have for a key. If no device has the key, listExisting lists the keys of the
// devices. A device also has the keys that the kernel reports for its parents.
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
