// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// Rule assigns devices of a class to a resource. The first rule that matches a device takes it.
//
// The keys of Match and Exclude are names of udev properties, or "ATTR{name}" for a sysfs attribute. The values are patterns for
// [udev.Glob]. If the device lacks a property, it inherits the property that the kernel reports for the nearest parent. For
// example, a rule can match PCI_SLOT_NAME for an InfiniBand device, and DRIVER for an NVMe namespace. The key "METALPLUG_ID"
// stands for the device's ID. The key "METALPLUG_PART" stands for the name of a device part, and never matches a whole device.
type Rule struct {
	Resource   string
	Class      *Class
	Match      map[string]string // all patterns must match
	Exclude    map[string]string // one matching pattern excludes the device
	AllowInUse bool              // offer the device even if this host uses it
	Extras     []string          // optional nodes of the class, such as "umad" and "issm"
	Group      *Group            // the nodes that form one device, or nil; only for class node
	Bundle     *Members          // a bundle's members, or nil; only for class bundle
	Nodes      string            // [NVMeBlock], [NVMeGeneric] or [NVMeBoth], or empty for NVMeBlock; only for class nvme

	// Scrub is the method that erases a disk between two pods. Scrub is empty if disks are not erased. Scrub is [ScrubUnset] if no
	// configuration file sets a method. A rule that sets Scrub does not offer a node for part of a disk, because metalplug can erase
	// only whole disks.
	Scrub string
	// ErasedAtStart means that the previous pod's data is erased before a container gets the device.
	ErasedAtStart bool
	// ClearedAtRelease means that a device is reset or erased after its last pod ends, and is not offered until then.
	ClearedAtRelease bool
	// Claims is the number of claims that may hold a device at the same time. Claims is 0 if pods get the devices through the
	// device plugin API.
	Claims int
	// Init is the systemd unit that must run each time the hardware appears, before the device is offered. Init is empty if no
	// unit is configured.
	Init string
}

// ScrubUnset is the value of [Rule].Scrub if the resource does not configure how its disks are erased. A rule with this value
// offers no disk.
const ScrubUnset = "unset"

// partProperty is the property that rules use to select parts of a device. A whole device does not have this property.
const partProperty = "METALPLUG_PART"

// IDProperty is the property that rules use to select a device by its ID.
const IDProperty = "METALPLUG_ID"

// decision is a rule's decision about a device.
type decision struct {
	rule *Rule
	err  error // why the rule does not take the device, or nil
}

// tryRules returns the first rule of the device's class that takes the device d, or nil, and also the decisions of all rules that
// were tried. tryRules skips rules with a group, because they do not take single devices.
func tryRules(h *Host, rules []Rule, d Device) (taker *Rule, tries []decision) {
	for i := range rules {
		r := &rules[i]
		if r.Class != d.Class || r.Group != nil {
			continue
		}
		err := r.checkMatch(h, d)
		tries = append(tries, decision{r, err})
		if err == nil {
			return r, tries
		}
	}
	return nil, tries
}

// ruleFor returns the first rule that takes the device d. If no rule takes the device, ruleFor returns an error that explains why
// each of the class's rules does not match.
func ruleFor(h *Host, rules []Rule, d Device) (*Rule, error) {
	taker, tries := tryRules(h, rules, d)
	if taker != nil {
		return taker, nil
	}
	var reasons []error
	for _, t := range tries {
		reasons = append(reasons, fmt.Errorf("%s: %w", t.rule.Resource, t.err))
	}
	if len(reasons) == 0 {
		return nil, errUnconfigured(d.Class)
	}
	return nil, fmt.Errorf("no resource matches the device: %w", joinErrors(reasons...))
}

func errUnconfigured(c *Class) error {
	return fmt.Errorf("no resource of class %s is configured", c.Name)
}

// mismatch is the reason why a rule does not take a device.
type mismatch struct {
	key  string // key of the rule that decided, such as "match.PCI_ID"
	what string
}

// Error returns the reason.
func (m mismatch) Error() string { return m.what }

// checkMatch returns nil if the rule takes the device d, and a [mismatch] otherwise.
func (r *Rule) checkMatch(h *Host, d Device) error {
	for _, key := range slices.Sorted(maps.Keys(r.Exclude)) {
		if value, ok := h.property(d, key); ok && matchesPattern(key, r.Exclude[key], value) {
			return mismatch{"exclude." + key, fmt.Sprintf("excluded by %s = %q", key, r.Exclude[key])}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(r.Match)) {
		value, ok := h.property(d, key)
		if !ok {
			return mismatch{"match." + key, "the device has no " + key}
		}
		if !matchesPattern(key, r.Match[key], value) {
			what := fmt.Sprintf("%s is %q, not %q", key, value, r.Match[key])
			if udev.Glob(strings.ToLower(r.Match[key]), strings.ToLower(value)) {
				what += ": they differ only in case"
			}
			return mismatch{"match." + key, what}
		}
	}
	return nil
}

// matchesPattern reports whether a property's value matches a pattern. PCI IDs match case-insensitively.
func matchesPattern(key, pattern, value string) bool {
	if strings.HasPrefix(key, "PCI_") {
		pattern, value = strings.ToUpper(pattern), strings.ToUpper(value)
	}
	return udev.Glob(pattern, value)
}

// overrule returns nil if the rule overrules all reasons in err, and err otherwise. A rule that allows devices in use overrules
// [ErrInUse], [ErrData] and [ErrUnproven]. A rule that names a device exactly overrules [ErrByName].
func (r *Rule) overrule(err error) error {
	inUse := errors.Is(err, ErrInUse) || errors.Is(err, ErrData) || errors.Is(err, ErrUnproven)
	byName := errors.Is(err, ErrByName)
	switch {
	case !inUse && !byName, errors.Is(err, ErrExcluded), errors.Is(err, ErrTwin), errors.Is(err, ErrIncomplete):
		return err
	case inUse && !r.AllowInUse, byName && !r.byName():
		return err
	}
	return nil
}

// byName reports whether the rule selects devices by a slot, hardware ID, driver or node, with a pattern without wildcards.
func (r *Rule) byName() bool {
	for _, key := range []string{"PCI_SLOT_NAME", "PCI_ID", "DRIVER", "DEVNAME"} {
		if value, ok := r.Match[key]; ok && !strings.ContainsAny(value, "*?[") {
			return true
		}
	}
	return false
}

// property returns a udev property of the device d or of a parent device. For a key "ATTR{name}", property returns an attribute
// of d.
func (h *Host) property(d Device, key string) (string, bool) {
	switch {
	case key == IDProperty && d.ID != "":
		return d.ID, true
	case key == IDProperty && d.Class == &Generic: // the rules of this class are tried before the device is identified
		return nodeID(h, *d.Udev), true
	case key == partProperty && d.Part != "":
		return d.Part, true
	}
	if name, ok := AttrKey(key); ok {
		value, err := h.Attr(d.Udev.SysPath, name)
		return value, err == nil
	}
	if value, ok := d.Udev.Property(key); ok {
		return value, true
	}
	for p := range h.parents(*d.Udev) {
		if value, ok := h.Properties(p)[key]; ok {
			return value, true
		}
	}
	return "", false
}

// parents yields the sysfs paths whose properties the udev device u inherits, nearest first. A VFIO group is not below its
// functions in sysfs, and inherits the properties of the first function.
func (h *Host) parents(u udev.Device) iter.Seq[string] {
	if functions := vfioFunctions(h, u); len(functions) > 0 {
		return sysfs.Up(functions[0])
	}
	return sysfs.Up(path.Dir(u.SysPath))
}

// AttrKey returns the attribute name from a key of the form "ATTR{name}".
func AttrKey(key string) (name string, ok bool) {
	name, ok = strings.CutPrefix(key, "ATTR{")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(name, "}")
}

// joinErrors is like errors.Join, but the text of the resulting error is a single line.
func joinErrors(errs ...error) error {
	var err error
	for _, next := range errs {
		if err == nil {
			err = next
		} else if next != nil {
			err = fmt.Errorf("%w; %w", err, next)
		}
	}
	return err
}
