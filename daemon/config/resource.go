// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

const (
	// sharesMost keeps the list of 50 devices within the 4 MiB that the kubelet receives (82 bytes a share).
	sharesMost = 1000
	// startMost leaves some seconds of the 30 that the kubelet gives PreStartContainer.
	startMost = 25 * time.Second
	// eraseTimeout is the default for an erasure that no container waits for.
	eraseTimeout = time.Hour
)

// abilities are what can be done to the devices of a class between two containers, beside nothing.
type abilities struct {
	methods []string // of reset
	auto    []string // those among them that "auto" may come to: the driver stays bound and survives
	scrubs  []string
}

// classAbilities has the abilities of each class, by its name. They are what the classes will say of themselves once
// they carry out their resets.
var classAbilities = map[string]abilities{
	"gpu":        {methods: []string{"pci", "vfio"}, auto: []string{"vfio"}},
	"fpga":       {methods: []string{"dfl-port", "pci", "vfio"}, auto: []string{"dfl-port", "vfio"}},
	"infiniband": {methods: []string{"pci"}},
	"nvme": {
		methods: []string{"nvme-controller", "nvme-subsystem", "pci", "vfio"},
		auto:    []string{"nvme-controller", "vfio"},
		scrubs:  []string{"discard", "zero", "format", "crypto-erase", "sanitize"},
	},
	"node": {methods: []string{"pci", "vfio"}, auto: []string{"vfio"}, scrubs: []string{"discard", "zero"}},
}

// placed is a resource and where it stands.
type placed struct {
	Resource
	at *table
}

// resources takes all [[resource]] of a file.
func resources(root *table) []placed {
	var all []placed
	lines := make(map[string]int)
	for _, t := range root.tables(resourceKey) {
		r := resource(t)
		if line, twice := lines[r.Name]; twice {
			t.reportf("name", "%s is defined twice, first on line %d", quoted(r.Name), line)
		} else if r.Name != "" {
			lines[r.Name] = t.file.lines.line(t.at("name"))
		}
		all = append(all, placed{r, t})
	}
	return all
}

// clash reports a resource of which a container could not tell the devices from those of another: the names differ, but
// not those of the variables that are made of them.
func (c *Config) clash(r placed) {
	for _, other := range c.Resources {
		if other.Name != r.Name && other.Variable() == r.Variable() {
			r.at.reportf("name", "%s and %s have the same environment variable %s in a container: rename one",
				quoted(r.Name), quoted(other.Name), r.Variable())
		}
	}
}

// resource takes one [[resource]].
func resource(t *table) Resource {
	r := newResource("", nil, nil)
	if t.text("name", &r.Name) {
		t.check("name", checkName(r.Name))
	}
	t.require("name", "the name by which pods ask for the devices")
	takeClass(t, &r)
	r.Match, r.Exclude = properties(t.table("match")), properties(t.table("exclude"))
	if _, ok := t.values["match"].(map[string]any); r.Class == &device.Generic && len(r.Match) == 0 && (ok || !t.has("match")) {
		t.reportf("match", "is empty: class %s would take every device node of this machine", r.Class.Name)
	}
	takeOffer(t, &r)
	reset := t.table("reset")
	takeReset(reset, &r)
	checkExclusive(t, reset, r)
	r.settle()
	if reset.has("when") && r.Reset.When != WhenStart && !r.Reset.acts() {
		reset.reportf("when", "%s needs a scrub or a method: nothing would be done", r.Reset.When)
	}
	takeUnits(t.table("units"), &r.Units)
	t.end()
	return r
}

func takeClass(t *table, r *Resource) {
	var names []string
	for _, class := range device.Classes {
		names = append(names, class.Name)
	}
	var name string
	if t.choice("class", "class", &name, names...) {
		r.Class = device.ClassNamed(name)
	}
	t.require("class", alternatives(names))
}

// properties takes the table match or exclude; nil if it is empty.
func properties(t *table) map[string]string {
	if len(t.values) == 0 {
		return nil
	}
	patterns := make(map[string]string)
	for _, key := range slices.Sorted(maps.Keys(t.values)) {
		t.check(key, checkProperty(key))
		var pattern string
		if t.text(key, &pattern) {
			t.check(key, checkPattern(pattern))
		}
		patterns[key] = pattern
	}
	return patterns
}

// takeOffer takes what makes the difference to whoever asks for a device.
func takeOffer(t *table, r *Resource) {
	t.number("shares", 1, sharesMost, &r.Shares)
	t.choice("prefer", "preference", &r.Prefer, Packed, Spread)
	t.choice("inject", "way of injection", &r.Inject, InjectNodes, InjectCDI)
	if t.text("cdi_kind", &r.CDIKind) && r.CDIKind != "" {
		t.check("cdi_kind", checkCDIKind(r.CDIKind))
		if r.Inject != InjectCDI {
			t.reportf("cdi_kind", `needs inject = "cdi"`)
		}
	}
	if t.text("permissions", &r.Permissions) {
		t.check("permissions", checkPermissions(r.Permissions))
	}
	t.boolean("allow_in_use", &r.AllowInUse)
	if r.AllowInUse && r.Class != nil && r.Class != &device.NVMe && r.Class != &device.Generic {
		t.reportf("allow_in_use", "is only for the classes %s and %s, not for %s",
			device.NVMe.Name, device.Generic.Name, r.Class.Name)
	}
}

// takeReset takes [resource.reset].
func takeReset(t *table, r *Resource) {
	able, of := r.abilities(), ""
	if r.Class != nil {
		of = " of class " + r.Class.Name
	}
	t.choice("method", "method"+of, &r.Reset.Method, append([]string{Auto, None}, able.methods...)...)
	t.choice("scrub", "scrub"+of, &r.Reset.Scrub, append([]string{None}, able.scrubs...)...)
	t.choice("when", "moment", &r.Reset.When, WhenStart, WhenRelease, WhenBoth)
	if r.Reset.When != WhenStart && r.Reset.Scrub != None {
		r.Reset.Timeout = eraseTimeout
	}
	if t.duration("timeout", &r.Reset.Timeout) && r.Reset.When == WhenStart && r.Reset.Timeout > startMost {
		t.reportf("timeout", "%s is more than %s: the kubelet waits 30s for everything that precedes a start",
			r.Reset.Timeout, startMost)
	}
	t.end()
}

// abilities returns those of the class; those of all classes if the class is not known.
func (r *Resource) abilities() abilities {
	if r.Class != nil {
		return classAbilities[r.Class.Name]
	}
	var all abilities
	for _, class := range slices.Sorted(maps.Keys(classAbilities)) {
		able := classAbilities[class]
		all.methods = append(all.methods, able.methods...)
		all.auto = append(all.auto, able.auto...)
		all.scrubs = append(all.scrubs, able.scrubs...)
	}
	slices.Sort(all.methods)
	slices.Sort(all.scrubs)
	all.methods, all.scrubs = slices.Compact(all.methods), slices.Compact(all.scrubs)
	return all
}

// checkExclusive finds what cannot be done to a device that is not one container's alone.
func checkExclusive(t, reset *table, r Resource) {
	if r.Reset.Scrub != None && r.Shares > 1 {
		reset.reportf("scrub", "%s would erase what the other holders of a device have, shares = %d", r.Reset.Scrub, r.Shares)
	}
	if r.Reset.Method != None && r.Reset.Method != Auto && r.Shares > 1 {
		reset.reportf("method", "%s would break off the other holders of a device, shares = %d", r.Reset.Method, r.Shares)
	}
	if r.Reset.Scrub != None && r.AllowInUse {
		t.reportf("allow_in_use", "would let %s erase what this host uses", r.Reset.Scrub)
	}
}

// settle makes "none" of "auto" where it cannot come to anything.
func (r *Resource) settle() {
	if r.Reset.Method == Auto && (r.Shares > 1 || r.AllowInUse || len(r.abilities().auto) == 0) {
		r.Reset.Method = None
	}
}

// takeUnits takes [resource.units].
func takeUnits(t *table, u *Units) {
	for _, unit := range []struct {
		key string
		to  *string
	}{{"init", &u.Init}, {"start", &u.Start}, {"release", &u.Release}} {
		if t.text(unit.key, unit.to) && *unit.to != "" {
			t.check(unit.key, checkUnit(*unit.to))
		}
	}
	t.end()
}
