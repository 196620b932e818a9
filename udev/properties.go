// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"iter"
	"maps"
	"slices"
	"strings"
)

// Properties are the properties of a device in udev, such as DEVNAME and ID_SERIAL. Only DEVPATH is missing, see
// [Device.Property]. They are immutable, and == compares them. The zero value is none.
//
// They are one text, as udevd sends them, and not a map. A machine may have ten thousand devices with twenty properties each,
// which take 0.5 KiB a device as text and 2 KiB as a map.
type Properties struct {
	text string // "KEY=VALUE\x00" for each, in the order of the keys, each key once
}

// NewProperties makes them of a map. DEVPATH is left out. No key of udev's holds "=" or NUL, and no value holds NUL.
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

// Value returns the value of a property, or "" if it is not there.
func (p Properties) Value(key string) string {
	value, _ := p.Lookup(key)
	return value
}

// Lookup returns the value of a property, and whether it is there.
func (p Properties) Lookup(key string) (value string, ok bool) {
	for name, value := range p.All() {
		if name == key {
			return value, true
		}
	}
	return "", false
}

// All yields keys and values in the order of the keys.
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

// With returns the properties with another value of one of them, which need not have been there.
func (p Properties) With(key, value string) Properties {
	all := maps.Collect(p.All())
	all[key] = value
	return NewProperties(all)
}
