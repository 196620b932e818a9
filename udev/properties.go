// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"iter"
	"maps"
	"slices"
	"strings"
)

// Properties contains a device's udev properties, such as DEVNAME and ID_SERIAL. DEVPATH is not one of them, but
// [Device.Property] returns it. Properties are immutable and can be compared with ==. The zero value has no properties.
//
// The properties are stored as one text, as udevd sends them, instead of as a map. Twenty properties take 0.5 KiB as text
// and 2 KiB as a map, and a machine may have ten thousand devices.
type Properties struct {
	// "KEY=VALUE\x00" for each property, sorted by key, without duplicate keys
	text string
}

// NewProperties returns the properties from a map. NewProperties omits DEVPATH. In udev, keys contain neither "=" nor NUL, and
// values contain no NUL.
func NewProperties(all map[string]string) Properties {
	size := 0
	for key, value := range all {
		size += len(key) + len(value) + len("=\x00")
	}
	var text strings.Builder
	text.Grow(size)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if key != devPath {
			text.WriteString(key)
			text.WriteByte('=')
			text.WriteString(all[key])
			text.WriteByte(0)
		}
	}
	return Properties{text.String()}
}

// Value returns the value of a property, or "" if it is missing.
func (p Properties) Value(key string) string {
	value, _ := p.Lookup(key)
	return value
}

// Lookup returns the value of a property, and whether the property exists.
func (p Properties) Lookup(key string) (value string, ok bool) {
	for name, value := range p.All() {
		if name == key {
			return value, true
		}
	}
	return "", false
}

// All yields all keys and values, sorted by key.
func (p Properties) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for rest := p.text; rest != ""; {
			property, more, _ := strings.Cut(rest, "\x00")
			if key, value, _ := strings.Cut(property, "="); !yield(key, value) {
				return
			}
			rest = more
		}
	}
}

// With returns a copy of the properties, with the value of one key replaced or added.
func (p Properties) With(key, value string) Properties {
	all := maps.Collect(p.All())
	all[key] = value
	return NewProperties(all)
}
