// SPDX-License-Identifier: Apache-2.0

// Package udev reports the devices on this machine as udevd sees them, and sends an event when a device changes.
//
// Users of this package must follow two rules. First, an event is only a hint to inspect a sysfs path again, because the kernel
// may lose, reorder and repeat events. Second, open the source before you enumerate the devices. A source queues events from the
// moment it is opened, so no change is missed. A change between the opening and the enumeration may be reported twice.
package udev

import (
	"context"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// Device is a copy of one device as udev reports it. Device does not need libudev. Two copies can be compared with ==.
type Device struct {
	Subsystem  string // subsystem in the kernel, such as "nvme", "drm" or "infiniband"
	DevType    string // type of the device within its subsystem, such as "disk", "partition" or "drm_minor"; usually empty
	SysPath    string // "/sys/devices/…", always with the prefix "/sys", even in a recording
	DevNode    string // "/dev/nvme0n1", empty for a device without a node
	Properties Properties
}

// NewDevice returns the device with the given path and properties. The kernel omits "/dev/" from DEVNAME, so NewDevice adds this
// prefix to the value in the map "all". The strings in the device share memory with the text that contains its properties.
func NewDevice(sysPath string, all map[string]string) Device {
	if name := all["DEVNAME"]; name != "" {
		all["DEVNAME"] = "/dev/" + strings.TrimPrefix(name, "/dev/")
	}
	p := NewProperties(all)
	return Device{p.Value("SUBSYSTEM"), p.Value("DEVTYPE"), sysPath, p.Value("DEVNAME"), p}
}

// Property returns the value of a property, and whether the device has that property. DEVPATH is derived from SysPath, because
// the field Properties does not repeat this long path.
func (d Device) Property(key string) (value string, ok bool) {
	if key == devPath {
		return strings.CutPrefix(d.SysPath, "/sys")
	}
	return d.Properties.Lookup(key)
}

// devPath is the property that contains a device's path below /sys.
const devPath = "DEVPATH"

// Besides the kernel's actions, an [Event] may have these actions, which this package defines.
const (
	// Overflow means that events were lost. The receiver must enumerate all devices again.
	Overflow = "overflow"
	// Missed means that udevd was not running. The receiver must enumerate all devices again.
	Missed = "missed"
	// Mounts means that the set of block devices that are mounted or used for swap has changed.
	Mounts = "mounts"
	// Logged means that a driver has written a message about a device to the kernel log. The property MESSAGE contains
	// the message.
	Logged = "logged"
)

// Event is a hint that something happened to a device.
type Event struct {
	Action   string    // "add", "remove", "change", "move", "bind", "unbind", … or [Overflow], [Missed], [Mounts], [Logged]
	Device   Device    // empty for [Overflow], [Missed] and [Mounts]; for [Logged], only the path and MESSAGE are set
	Received time.Time // when this process received the event
}

// Source is a source of devices and events. A source is either the machine's udev or a recording of another machine.
type Source interface {
	// Enumerate returns all devices that currently exist. Enumerate blocks while it reads sysfs and udev's database.
	Enumerate() ([]Device, error)
	// Listen sends each event that has occurred since the source was opened. Listen blocks until ctx ends, and returns the
	// context's error. Listen may be called only once.
	Listen(ctx context.Context, events chan<- Event) error
}

// Match selects devices by their fields and properties. An empty field matches every device.
type Match struct {
	Subsystem  string
	DevType    string
	Properties map[string]string // [Glob] patterns by property name; all of them must match
}

// Matches reports whether m selects d.
func (m Match) Matches(d Device) bool {
	if m.Subsystem != "" && m.Subsystem != d.Subsystem || m.DevType != "" && m.DevType != d.DevType {
		return false
	}
	for key, pattern := range m.Properties {
		value, ok := d.Property(key)
		if !ok || !Glob(pattern, value) {
			return false
		}
	}
	return true
}

// Glob reports whether value matches a shell pattern in the syntax of udev's rules. Alternatives are separated by "|", and each
// may contain "*", "?" and "[…]" (udev(7), PATTERN MATCHING). Unlike in patterns for file names, "*" also matches "/". A
// malformed pattern matches nothing. Call [CheckGlob] to find malformed patterns in advance.
func Glob(pattern, value string) bool {
	// In path.Match, "*" does not match a slash. Glob therefore replaces each slash with NUL, both in the pattern and in the
	// value. No property contains NUL.
	pattern, value = strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(value, "/", "\x00")
	for alternative := range strings.SplitSeq(pattern, "|") {
		if ok, err := path.Match(alternative, value); ok && err == nil {
			return true
		}
	}
	return false
}

// CheckGlob returns an error if a pattern is malformed.
func CheckGlob(pattern string) error {
	for alternative := range strings.SplitSeq(pattern, "|") {
		if _, err := path.Match(alternative, ""); err != nil {
			return err
		}
	}
	return nil
}

// IsPCIAddress reports whether name is the address of a PCI function, such as 0000:3b:00.0. The domain may have more than
// four digits.
func IsPCIAddress(name string) bool {
	const hex = "0123456789abcdef"
	domain, slot, _ := strings.Cut(name, ":")
	return len(domain) >= 4 && strings.Trim(domain, hex) == "" &&
		len(slot) == len("3b:00.0") && slot[2] == ':' && slot[5] == '.' &&
		strings.Trim(slot[:2]+slot[3:5], hex) == "" && '0' <= slot[6] && slot[6] <= '7'
}

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
