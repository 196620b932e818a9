// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/metalplug/metalplug/daemon/device"
)

// takeResources reads all [[resource]] tables in the files. If the parameter "apply" is true, takeResources also adds the
// built-in resources.
func (c *Config) takeResources(files []*file, apply bool) {
	tables := resourceTables(files, apply)
	c.places = make(map[string]*table)
	for _, t := range tables {
		r := resource(t)
		c.Resources = append(c.Resources, r)
		c.places[r.Name] = t
	}
	for _, values := range builtin {
		if name := values["name"].(string); apply && name != nvme && c.places[name] == nil {
			r := builtinResource(values)
			r.Optional = true
			c.Resources = append(c.Resources, r)
		}
	}
	for i, t := range tables {
		c.checkMembers(t, c.Resources[i])
		for j, other := range c.Resources {
			if j < i || j >= len(tables) {
				c.reportClash(t, c.Resources[i], other)
			}
		}
	}
}

// resourceTables returns a table for each resource in the files, in file order. A table that overrides a built-in resource starts
// with the built-in values.
func resourceTables(files []*file, builtin bool) []*table {
	var all []*table
	byName := make(map[string]*table)
	for _, f := range files {
		lines := make(map[string]int)
		for i, values := range f.tables() {
			at := place{f, toml.Key{resourceKey, strconv.Itoa(i)}}
			name, _ := values["name"].(string)
			if line, twice := lines[name]; twice {
				at.child("name").reportf("%s is defined twice, first on line %d; merge the two", quote(name), line)
				continue
			}
			t := byName[name]
			if t == nil {
				t = &table{}
				if builtin {
					t.merge(place{}, builtinValues(name))
				}
				all = append(all, t)
			}
			t.merge(at, values)
			if name != "" {
				byName[name], lines[name] = t, at.child("name").problem("").Line
			}
		}
	}
	return all
}

// tables returns the [[resource]] tables of the file.
func (f *file) tables() []map[string]any {
	array, ok := f.resources.([]map[string]any)
	// Any value except an array of tables or an empty array is an error.
	if empty, _ := f.resources.([]any); !ok && f.resources != nil && (empty == nil || len(empty) > 0) {
		at := place{f, toml.Key{resourceKey}}
		at.reportf("is %s, not an array of tables; write [[%s]]", typeName(f.resources), resourceKey)
	}
	return array
}

// reportClash reports two resources with the same environment variable, because a container could not distinguish their
// devices. reportClash also reports two resources that name the same device by its ID.
func (c *Config) reportClash(t *table, r, other Resource) {
	if other.Name != r.Name && other.Variable() == r.Variable() {
		t.reportf("name", "%s and %s have the same environment variable %s in a container; rename one",
			quote(r.Name), quote(other.Name), r.Variable())
	}
	for _, id := range namedIDs(r) {
		if slices.Contains(namedIDs(other), id) {
			t.reportBelowf("match", device.IDProperty, "%s is also named by %s (%s); remove it from one match",
				quote(id), quote(other.Name), c.Where(other.Name, "match."+device.IDProperty))
		}
	}
}

// namedIDs returns the device IDs that a resource names without wildcards and does not exclude.
func namedIDs(r Resource) []string {
	var ids []string
	for _, id := range strings.Split(r.Match[device.IDProperty], "|") {
		excluded := slices.Contains(strings.Split(r.Exclude[device.IDProperty], "|"), id)
		if id != "" && !strings.ContainsAny(id, `*?[\`) && !excluded {
			ids = append(ids, id)
		}
	}
	return ids
}

// Where returns the position of a resource's key as "FILE:LINE". The path FILE is absolute. For a missing key, Where returns the
// position of the table that would contain the key. The parameter key is "name", "match.PROPERTY" or "exclude.PROPERTY". If
// several files set the key, Where returns the position of the value that applies. For a built-in resource that no file contains,
// Where returns "".
func (c Config) Where(resource, key string) string {
	t := c.places[resource]
	if t == nil {
		return ""
	}
	table, property, below := strings.Cut(key, ".")
	p := t.place(table)
	if below {
		p = p.child(property)
	}
	where := p.problem("")
	if name, err := filepath.Abs(where.File); err == nil {
		where.File = name
	}
	return fmt.Sprintf("%s:%d", where.File, where.Line)
}
