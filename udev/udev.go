// SPDX-License-Identifier: Apache-2.0

// Package udev reports the devices of this machine and what happens to them, as udevd sees it.
//
// Two rules hold for its users. An event is only a hint to look again at a sysfs path, because the kernel may lose, reorder
// and repeat events. And a source listens from the moment it is opened, so that enumerating afterwards misses nothing. A
// change in between is seen twice.
package udev

import (
	"context"
	"path"
	"regexp"
	"strings"
	"time"
)

// Device is a copy of one device as udev reports it. No handle of libudev leaves this package. == compares two reports.
type Device struct {
	Subsystem  string // of the kernel, "nvme", "drm", "infiniband"
	DevType    string // udev's devtype, "disk", "partition", "drm_minor", usually empty
	SysPath    string // "/sys/devices/…", always with the prefix "/sys", also for a recording
	DevNode    string // "/dev/nvme0n1", empty for a device without a node
	Properties Properties
}

// NewDevice returns the device at a path with all its properties. It adds the "/dev/" that the kernel leaves out of DEVNAME to
// the map. The strings of the device are parts of the text of its properties.
func NewDevice(sysPath string, all map[string]string) Device {
	if name := all["DEVNAME"]; name != "" {
		all["DEVNAME"] = "/dev/" + strings.TrimPrefix(name, "/dev/")
	}
	p := NewProperties(all)
	return Device{p.Value("SUBSYSTEM"), p.Value("DEVTYPE"), sysPath, p.Value("DEVNAME"), p}
}

// Property returns the value of a property, and whether it is there. DEVPATH is, though it is not among the Properties. The
// path is long, and SysPath has it already.
func (d Device) Property(key string) (value string, ok bool) {
	if key == devPath {
		return strings.CutPrefix(d.SysPath, "/sys")
	}
	return d.Properties.Lookup(key)
}

// devPath is the property that says where below /sys a device is.
const devPath = "DEVPATH"

// Actions of an [Event] that are not the kernel's own.
const (
	// Overflow says that events were lost and everything must be enumerated again.
	Overflow = "overflow"
	// Missed says that udevd was absent, and everything must be enumerated again.
	Missed = "missed"
	// Mounts says that the set of block devices which this host has mounted or swaps to has changed.
	Mounts = "mounts"
	// Logged says that a driver has written a message about a device into the kernel's log. The property MESSAGE holds it.
	Logged = "logged"
)

// Event is a hint that something happened to a device.
type Event struct {
	Action   string    // "add", "remove", "change", "move", "bind", "unbind", … or [Overflow], [Missed], [Mounts], [Logged]
	Device   Device    // as the event reports it, empty for the first three, and for [Logged] hardly more than the path
	Received time.Time // when this process read it
}

// Source is where devices come from, the machine's udev or a recording of another machine.
type Source interface {
	// Enumerate lists all devices that are present now. It blocks while it reads sysfs and udev's database.
	Enumerate() ([]Device, error)
	// Listen sends every event since the source was opened, until ctx ends, whose error it then returns.
	// It may be called once.
	Listen(ctx context.Context, events chan<- Event) error
}

// Match selects devices. An empty field matches every device.
type Match struct {
	Subsystem  string
	DevType    string
	Properties map[string]string // property name to [Glob] pattern, of which all must hold
}

// Matches reports whether d is selected.
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

// Glob reports whether value matches a shell pattern as udev's rules write it. It has alternatives separated by "|", each
// with "*", "?" and "[…]" (udev(7), PATTERN MATCHING). Unlike in a file name, "*" also matches "/". A malformed pattern
// matches nothing. [CheckGlob] finds it beforehand.
func Glob(pattern, value string) bool {
	// path.Match stops "*" at a slash. No property holds a NUL, so it can stand in for the slash on both sides.
	pattern, value = strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(value, "/", "\x00")
	for alternative := range strings.SplitSeq(pattern, "|") {
		if ok, err := path.Match(alternative, value); ok && err == nil {
			return true
		}
	}
	return false
}

// CheckGlob returns the error of a malformed pattern.
func CheckGlob(pattern string) error {
	for alternative := range strings.SplitSeq(pattern, "|") {
		if _, err := path.Match(alternative, ""); err != nil {
			return err
		}
	}
	return nil
}

// IsPCIAddress reports whether a name is the address of a PCI function, 0000:3b:00.0. A domain may have more digits.
func IsPCIAddress(name string) bool { return pciAddress.MatchString(name) }

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
