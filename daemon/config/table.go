// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// place is the position of a key in a file. The place of a built-in value has no file.
type place struct {
	file *file
	path toml.Key
}

// child returns the place of a key in the table at p.
func (p place) child(key string) place { return place{p.file, append(slices.Clone(p.path), key)} }

// problem returns a problem at p. If the message has no remedy after a semicolon, problem adds an example of the key as the
// remedy.
func (p place) problem(format string, args ...any) Problem {
	what := fmt.Sprintf(format, args...)
	if what != "" && !strings.Contains(what, "; ") {
		what += "; write " + p.example()
	}
	return Problem{File: p.file.name, Line: p.file.lines.line(p.path), Key: oneLine(spelling(p.path)), What: what}
}

// exampleValues maps every key that a file can contain to an example value, or to "" if the key is a table. The example of a path
// is its default.
var exampleValues = map[string]string{
	"builtin": "true", "paths": "", "hardware": "", "reset": "", "resource": "", "resource.reset": "", "resource.units": "",
	"paths.device_plugins": `"/var/lib/kubelet/device-plugins"`, "paths.pod_resources": `"/var/lib/kubelet/pod-resources/kubelet.sock"`,
	"paths.state": `"/var/lib/metalplug"`, "paths.run": `"/run/metalplug"`, "paths.cdi": `"/run/cdi"`, "paths.sysfs": `"/sys"`,
	"paths.dev": `"/dev"`, "paths.proc": `"/proc"`, "paths.cgroup": `"/sys/fs/cgroup"`, "hardware.source": `"udev"`,
	"reset.socket": `"/run/metalplug/reset.sock"`, "reset.holders": `"/run/metalplug/holders.sock"`, "reset.units": `"/run/metalplug/unit.sock"`,
	"resource.name": `"example.com/gpu"`, "resource.class": `"gpu"`, "resource.match": `{ ID_MODEL = "Samsung*" }`,
	"resource.exclude": `{ ID_MODEL = "Samsung*" }`, "resource.group": `["/dev/video*"]`, "resource.optional": `["/dev/snd/*"]`,
	"resource.group_by": `"usb"`, "resource.nodes": `"block"`, "resource.shares": "1", "resource.prefer": `"packed"`,
	"resource.inject": `"nodes"`, "resource.cdi_kind": `"nvidia.com/gpu"`, "resource.permissions": `"rw"`, "resource.env": `{ NAME = "value" }`,
	"resource.allow_in_use": "false", "resource.umad": "false", "resource.issm": "false",
	"resource.members": `["nvidia.com/gpu", "example.com/scratch*2"]`, "resource.near": `"any"`, "resource.rest": `"hold"`,
	"resource.serve": `"plugin"`, "resource.takeover": "false", "resource.reset.method": `"auto"`, "resource.reset.scrub": `"none"`,
	"resource.reset.when": `"start"`, "resource.reset.timeout": `"20s", "5m" or "1h30m"`, "resource.units.init": `"name@.service"`,
	"resource.units.start": `"name@.service"`, "resource.units.release": `"name@.service"`,
}

// example returns an example of how to write the key at p.
func (p place) example() string {
	last := len(p.path) - 1
	value := cmp.Or(replacedWhole[p.path[max(0, last-1)]], exampleValues[spelling(p.path)])
	if value == "" {
		return "[" + spelling(p.path) + "]"
	}
	return oneLine(p.path[last:].String()) + " = " + value
}

// reportf reports a problem at p.
func (p place) reportf(format string, args ...any) {
	p.file.problems = append(p.file.problems, p.problem(format, args...))
}

// value contains a key's value and position in a file.
type value struct {
	content any // a *table, or a value from the parser
	at      place
}

// table contains the keys of one TOML table, merged from all files. A value in a later file replaces the value in an earlier
// file.
type table struct {
	last     place // position of the table in the last file that contains it
	values   map[string]value
	notTable bool // a file contains a value that is not a table
}

// replacedWhole contains the names of the tables that a later file replaces completely, each with an example of a value in the
// table. In any other table, a later file replaces only the keys that it sets.
var replacedWhole = map[string]string{"match": `"A*" or "A*|B"`, "exclude": `"A*" or "A*|B"`, "env": `"text"`}

// merge adds the values that one file sets in this table, and reports unknown keys. The parameter "at" is the table's position in
// that file.
func (t *table) merge(at place, values map[string]any) {
	t.last = at
	if t.values == nil {
		t.values = make(map[string]value)
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		v, p := values[key], at.child(key)
		if at.file != nil {
			p.checkKnown()
		}
		if below, ok := v.(map[string]any); ok {
			sub, _ := t.values[key].content.(*table)
			if sub == nil || replacedWhole[key] != "" {
				sub = &table{}
			}
			sub.merge(p, below)
			v = sub
		}
		t.values[key] = value{v, p}
	}
}

// has reports whether the key is set, even if its value is invalid.
func (t *table) has(key string) bool { return t.values[key].content != nil }

// value returns the value of a key, or nil.
func (t *table) value(key string) any { return t.values[key].content }

// place returns the position to report for problems with a key.
func (t *table) place(key string) place {
	if v := t.values[key]; v.at.file != nil {
		return v.at
	}
	return t.last.child(key)
}

// elsewhere returns the file and line of a key in parentheses, to be added to a message about a problem at p. The result is "" if
// the key is in the same file as p, or if no file contains the table.
func (t *table) elsewhere(key string, p place) string {
	at := t.place(key)
	if at.file == nil || at.file == p.file {
		return ""
	}
	return fmt.Sprintf(" (%s:%d)", at.file.name, at.file.lines.line(at.path))
}

// reportf reports a problem with a key.
func (t *table) reportf(key, format string, args ...any) { t.place(key).reportf(format, args...) }

// reportBelowf reports a problem with a property in a key's table.
func (t *table) reportBelowf(key, property, format string, args ...any) {
	t.place(key).child(property).reportf(format, args...)
}

// check reports a problem with a key unless err is nil.
func (t *table) check(key string, err error) {
	if err != nil {
		t.reportf(key, "%s", err)
	}
}

// require reports a key that is not set. The parameter "wanted" says what the operator should write. If the key is misspelt,
// merge has already reported it.
func (t *table) require(key, wanted string) {
	misspelt := func(set string) bool { return mostSimilar(set, []string{key}) != "" }
	if !t.has(key) && !t.notTable && !slices.ContainsFunc(slices.Collect(maps.Keys(t.values)), misspelt) {
		t.reportf(key, "is missing: %s", wanted)
	}
}

// take returns a key's value if the key is set and the value has the right type. The parameter "wanted" describes that type in
// the error.
func take[T any](t *table, key, wanted string) (taken T, ok bool) {
	v := t.value(key)
	if taken, ok = v.(T); !ok && v != nil {
		t.reportf(key, "is %s, not %s", typeName(v), wanted)
	}
	return taken, ok
}

// read sets a value if the key is set and has the right type, and reports whether it did.
func read[T any](t *table, key, wanted string, to *T) (ok bool) {
	taken, ok := take[T](t, key, wanted)
	if ok {
		*to = taken
	}
	return ok
}

// text reads a string, and reports whether there is one.
func (t *table) text(key string, to *string) (ok bool) { return read(t, key, "a string in quotes", to) }

// checked reads a string, and reports the problem that the function "check" finds. The result is true if there is a valid string.
func (t *table) checked(key string, to *string, check func(string) error) bool {
	if !t.text(key, to) {
		return false
	}
	err := check(*to)
	t.check(key, err)
	return err == nil
}

// texts returns the strings in an array. The parameter "wanted" describes the array in the error. texts reports an element that is
// not a string.
func (t *table) texts(key, wanted string) (texts []string) {
	array, _ := take[[]any](t, key, wanted)
	for _, element := range array {
		if text, ok := element.(string); ok {
			texts = append(texts, text)
		} else {
			t.reportf(key, "contains %s, but all elements must be strings", typeName(element))
		}
	}
	return texts
}

// boolean reads true or false.
func (t *table) boolean(key string, to *bool) { read(t, key, "true or false", to) }

// number reads an integer that must be in the given range.
func (t *table) number(key string, least, most int, to *int) {
	n, ok := take[int64](t, key, "an integer")
	if ok && (n < int64(least) || n > int64(most)) {
		t.reportf(key, "%d is not between %d and %d", n, least, most)
	} else if ok {
		*to = int(n)
	}
}

// choice reads a value that must be in the list words. The parameter noun names the kind of value in the error.
func (t *table) choice(key, noun string, to *string, words ...string) {
	var word string
	switch {
	case !t.text(key, &word):
	case slices.Contains(words, word):
		*to = word
	default:
		t.reportf(key, "%s is not a %s: %s%s", quote(word), noun, Alternatives(words), suggestWord(word, words))
	}
}

// maxDuration is the longest valid duration, one year.
const maxDuration = 8760 * time.Hour

// duration reads a positive duration.
func (t *table) duration(key string, to *time.Duration) bool {
	text, ok := take[string](t, key, "a duration in quotes")
	d, err := time.ParseDuration(text)
	if ok && (err != nil || d <= 0 || d > maxDuration) {
		t.reportf(key, "%s is not a duration above 0s and at most 8760h", quote(text))
		return false
	}
	if ok {
		*to = d
	}
	return ok
}

// table returns the table that is the value of a key. The table is empty if the key is not set.
func (t *table) table(key string) *table {
	sub, ok := take[*table](t, key, "a table")
	if !ok {
		sub = &table{last: t.place(key), notTable: t.has(key)}
	}
	return sub
}

// typeName returns a readable name for a value's type.
func typeName(v any) string {
	return cmp.Or(map[string]string{
		"string": "a string in quotes", "int64": "an integer", "float64": "a float", "bool": "a boolean", "time.Time": "a date or time",
		"*config.table": "a table", "map[string]interface {}": "a table", "[]map[string]interface {}": "an array of tables",
	}[fmt.Sprintf("%T", v)], "an array")
}
