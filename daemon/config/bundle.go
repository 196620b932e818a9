// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
)

// Values of the key "rest", which decides how devices outside bundles are offered.
const (
	RestHold  = "hold"  // they are not offered
	RestOffer = "offer" // each is offered under the name of its own resource
)

// defaultNear is the default value of the key "near" in a file.
const defaultNear = "any"

// bundleKeys lists the keys of a bundle resource, in addition to the keys that all resources have.
var bundleKeys = []string{"members", "near", "rest", "takeover"}

// maxMembers is the maximum number of devices in a bundle.
const maxMembers = 64

// takeBundle reads the keys members, near and rest.
func takeBundle(t *table, r *Resource) {
	m, near, rest := &device.Members{}, defaultNear, RestHold
	t.members(m)
	t.choice("near", "distance", &near, device.Nears...)
	t.choice("rest", "policy for the remaining devices", &rest, RestHold, RestOffer)
	if r.Class != device.BundleName {
		for key, set := range map[string]bool{"members": len(m.Resources) > 0, "near": near != defaultNear, "rest": rest != RestHold} {
			if set {
				t.onlyFor(key, r.Class, device.BundleName)
			}
		}
		return
	}
	t.require("members", "the resources that make up a bundle")
	if array, ok := t.value("members").([]any); ok && len(array) == 0 {
		t.reportf("members", "is empty")
	}
	for _, key := range slices.Sorted(maps.Keys(t.values)) {
		if _, known := exampleValues[resourceKey+"."+key]; known && !slices.Contains(bundleKeys, key) && !slices.Contains([]string{"name", "class", "serve"}, key) {
			t.reportf(key, "does not apply to class %s, which has %s; set the other keys in the resources of the members",
				device.BundleName, Alternatives(bundleKeys))
		}
	}
	m.Near, m.Hold = near, rest == RestHold
	r.Members = m
}

// members reads a bundle's key "members". Each member is a resource name, which a number of devices may follow, as in
// "example.org/scratch*2".
func (t *table) members(m *device.Members) {
	texts, total := t.texts("members", "an array of resources"), 0
	for _, text := range texts {
		name, number, counted := strings.Cut(text, "*")
		n, err := strconv.Atoi(number)
		if !counted {
			n, err = 1, nil
		}
		switch {
		case err != nil || n < 1 || n > maxMembers:
			t.reportf("members", `%s is not a resource with a number from 1 to %d`, quote(text), maxMembers)
		case checkName(name) != nil:
			t.check("members", checkName(name))
		case slices.Contains(m.Resources, name):
			t.reportf("members", `has %s twice; write its number of devices once, as in "%s*2"`, quote(name), name)
		default:
			m.Resources, m.Counts, total = append(m.Resources, name), append(m.Counts, n), total+n
		}
	}
	if len(texts) > 0 && len(texts) == len(m.Resources) && (total < 2 || total > maxMembers) {
		t.reportf("members", "the total number of devices is %d, but must be 2 to %d", total, maxMembers)
	}
}

// checkMembers reports resources that cannot be members of a bundle.
func (c *Config) checkMembers(t *table, r Resource) {
	if r.Members == nil {
		return
	}
	for _, name := range r.Members.Resources {
		member, known := c.Resource(name)
		switch {
		case !known:
			wanted := "add a [[resource]] of that name"
			for _, other := range c.Resources {
				if distance(strings.ToLower(name), other.Name) <= 2 {
					wanted = "did you mean " + quote(other.Name) + "?"
				}
			}
			t.reportf("members", "%s is not a resource; %s", quote(name), wanted)
			continue
		case member.Class == device.BundleName:
			t.reportf("members", "%s is a bundle; name its members", quote(name))
		case member.Serve == ServeDRA:
			t.reportf("members", `%s has serve = "dra"; write serve = "plugin" for the members of a bundle`, quote(name))
		case member.Shares > 1:
			t.reportf("members", "%s has shares = %d; write shares = 1 for the members of a bundle", quote(name), member.Shares)
		}
		for _, other := range c.Resources {
			if other.Name != r.Name && other.Members.Kind(name) >= 0 {
				t.reportf("members", "%s is also in the bundle %s; remove it from one of them", quote(name), quote(other.Name))
			}
		}
	}
}
