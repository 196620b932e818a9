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

// at returns the place of a key in the table at p.
func (p place) at(key string) place { return place{p.file, append(slices.Clone(p.path), key)} }

// problem returns a problem at p. A remedy in the message follows a semicolon. If the message contains no remedy, an example
// of the key is added.
func (p place) problem(format string, args ...any) Problem {
	what := fmt.Sprintf(format, args...)
	if what != "" && !strings.Contains(what, "; ") {
		what += "; write " + p.example()
	}
	return Problem{File: p.file.name, Line: p.file.lines.line(p.path), Key: plain(spelt(p.path)), What: what}
}

// examples maps keys to example values. A key that is not unique is written with its path.
var examples = map[string]string{
	"builtin": "true", "device_plugins": `"/var/lib/kubelet/device-plugins"`, "pod_resources": `"/var/lib/kubelet/pod-resources/kubelet.sock"`,
	"state": `"/var/lib/metalplug"`, "run": `"/run/metalplug"`, "cdi": `"/run/cdi"`, "sysfs": `"/sys"`, "dev": `"/dev"`, "proc": `"/proc"`,
	"cgroup": `"/sys/fs/cgroup"`, "source": `"udev"`, "reset.socket": `"/run/metalplug/reset.sock"`,
	"reset.holders": `"/run/metalplug/holders.sock"`, "reset.units": `"/run/metalplug/unit.sock"`, "name": `"example.com/gpu"`, "class": `"gpu"`,
	"match": `{ ID_MODEL = "Samsung*" }`, "exclude": `{ ID_MODEL = "Samsung*" }`, "group": `["/dev/video*"]`, "optional": `["/dev/snd/*"]`,
	"group_by": `"usb"`, "nodes": `"block"`, "shares": "1", "prefer": `"packed"`, "inject": `"nodes"`, "cdi_kind": `"nvidia.com/gpu"`,
	"permissions": `"rw"`, "env": `{ NAME = "value" }`, "allow_in_use": "false", "umad": "false", "issm": "false",
	"members": `["nvidia.com/gpu", "example.com/scratch*2"]`, "near": `"any"`, "rest": `"hold"`, "serve": `"plugin"`, "takeover": "false",
	"method": `"auto"`, "scrub": `"none"`, "when": `"start"`, "timeout": `"20s", "5m" or "1h30m"`,
	"init": `"name@.service"`, "start": `"name@.service"`, "release": `"name@.service"`,
}

// example returns an example of how to write the key at p.
func (p place) example() string {
	last := len(p.path) - 1
	key, value := p.path[last:].String(), whole[p.path[max(0, last-1)]]
	if value = cmp.Or(value, examples[p.path.String()], examples[key]); value == "" {
		return "[" + spelt(p.path) + "]"
	}
	return plain(key) + " = " + value
}

// reportf reports a problem at p.
func (p place) reportf(format string, args ...any) {
	p.file.problems = append(p.file.problems, p.problem(format, args...))
}

// value is the value of a key, with its position.
type value struct {
	is any // a *table, or a value from the parser
	at place
}

// table contains the keys of one TOML table from all files. A value in a later file replaces an earlier one. The methods of table read the
// values of keys. Keys that no method reads are unknown keys.
type table struct {
	last   place // position of the table in the last file that contains it
	values map[string]value
	known  []string
	wrong  bool // a file contains a value that is not a table
}

// whole lists the tables that a later file replaces as a whole, each with an example of a value. All other tables are
// overridden key by key.
var whole = map[string]string{"match": `"A*" or "A*|B"`, "exclude": `"A*" or "A*|B"`, "env": `"text"`}

// merge adds the values of a table in a file. The parameter at is the position of that table.
func (t *table) merge(at place, values map[string]any) {
	t.last = at
	if t.values == nil {
		t.values = make(map[string]value)
	}
	for key, v := range values {
		if below, ok := v.(map[string]any); ok {
			sub, _ := t.values[key].is.(*table)
			if sub == nil || whole[key] != "" {
				sub = &table{}
			}
			sub.merge(at.at(key), below)
			v = sub
		}
		t.values[key] = value{v, at.at(key)}
	}
}

// has reports whether the key is set, whatever its value is.
func (t *table) has(key string) bool { return t.values[key].is != nil }

// value returns the value of a key, or nil.
func (t *table) value(key string) any { return t.values[key].is }

// place returns the position to report for problems with a key.
func (t *table) place(key string) place {
	if v := t.values[key]; v.at.file != nil {
		return v.at
	}
	return t.last.at(key)
}

// elsewhere returns the file and line of a key, for a message about a problem at p. It returns "" if the key is in the
// same file as p.
func (t *table) elsewhere(key string, p place) string {
	at := t.place(key)
	if at.file == nil || at.file == p.file {
		return ""
	}
	return fmt.Sprintf(" (%s:%d)", at.file.name, at.file.lines.line(at.path))
}

// reportf reports a problem with a key.
func (t *table) reportf(key, format string, args ...any) { t.place(key).reportf(format, args...) }

// reportBelowf reports a problem with a property in the table of a key.
func (t *table) reportBelowf(key, property, format string, args ...any) {
	t.place(key).at(property).reportf(format, args...)
}

// check reports a problem with a key unless err is nil.
func (t *table) check(key string, err error) {
	if err != nil {
		t.reportf(key, "%s", err)
	}
}

// require reports a key that is not set, and what the operator should write.
func (t *table) require(key, wanted string) {
	if !t.has(key) && !t.wrong {
		t.reportf(key, "is missing: %s", wanted)
	}
}

// end must be called after all keys were read. It finds the keys in the table that no method has read.
func (t *table) end() {
	if t.last.file == nil {
		return
	}
	for _, key := range t.known {
		path := unnumbered(t.last.at(key).path)
		t.last.file.known[path.String()] = path
	}
	for _, key := range slices.Sorted(maps.Keys(t.values)) {
		if at := t.values[key].at; !slices.Contains(t.known, key) && at.file != nil {
			at.file.unknown = append(at.file.unknown, at)
		}
	}
}

// take returns the value of a key if the key is set and the value has the right type. The parameter wanted describes that
// type in the error.
func take[T any](t *table, key, wanted string) (taken T, ok bool) {
	t.known = append(t.known, key)
	v := t.value(key)
	if taken, ok = v.(T); !ok && v != nil {
		t.reportf(key, "is %s, not %s", typeName(v), wanted)
	}
	return taken, ok
}

// text reads a string.
func (t *table) text(key string, to *string) bool { return set(t, key, "a string in quotes", to) }

// checked reads a string and reports the problem that the function check finds.
func (t *table) checked(key string, to *string, check func(string) error) {
	if t.text(key, to) {
		t.check(key, check(*to))
	}
}

// boolean reads true or false.
func (t *table) boolean(key string, to *bool) bool { return set(t, key, "true or false", to) }

func set[T any](t *table, key, wanted string, to *T) bool {
	value, ok := take[T](t, key, wanted)
	if ok {
		*to = value
	}
	return ok
}

// number reads an integer that must be in the given range.
func (t *table) number(key string, least, most int, to *int) {
	n, ok := take[int64](t, key, "an integer")
	if ok && (n < int64(least) || n > int64(most)) {
		t.reportf(key, "%d is not between %d and %d", n, least, most)
	} else if ok {
		*to = int(n)
	}
}

// choice reads a value that must be in the list words. The parameter noun is what the error calls such a value.
func (t *table) choice(key, noun string, to *string, words ...string) bool {
	word, ok := take[string](t, key, "a string in quotes")
	if ok && !slices.Contains(words, word) {
		t.reportf(key, "%s is not a %s: %s%s", quoted(word), noun, Alternatives(words), meantWord(key, word, words))
		return false
	}
	if ok {
		*to = word
	}
	return ok
}

// duration reads a positive duration.
func (t *table) duration(key string, to *time.Duration) bool {
	text, ok := take[string](t, key, "a duration in quotes")
	d, err := time.ParseDuration(text)
	if ok && (err != nil || d <= 0) {
		t.reportf(key, "%s is not a duration above 0s", quoted(text))
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
		sub = &table{last: t.place(key), wrong: t.has(key)}
	}
	return sub
}

// typeName returns a readable name for the type of a value.
func typeName(v any) string {
	return cmp.Or(map[string]string{
		"string": "a string in quotes", "int64": "an integer", "float64": "a float", "bool": "a boolean", "time.Time": "a date or time",
		"*config.table": "a table", "map[string]interface {}": "a table", "[]map[string]interface {}": "an array of tables",
	}[fmt.Sprintf("%T", v)], "an array")
}
