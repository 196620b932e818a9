// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/BurntSushi/toml"
)

// layer is the part of a table that is in one file.
type layer struct {
	file   *file // nil for the built-in resources
	path   toml.Key
	values map[string]any // empty for a table that the file does not have
}

// at returns the path of a key of the table.
func (l layer) at(key string) toml.Key { return append(slices.Clone(l.path), key) }

// table is a table of all files together. If several have a key, the last one holds. Its methods take the value of a key.
// A key that no method has taken in the end is unknown.
type table struct {
	layers []layer // in the order of reading, at least one
	known  []string
}

// said returns the layer whose value of a key holds. ok is false, and it is the last layer, if none has the key.
func (t *table) said(key string) (l layer, ok bool) {
	for _, l := range slices.Backward(t.layers) {
		if _, ok := l.values[key]; ok {
			return l, true
		}
	}
	return t.layers[len(t.layers)-1], false
}

// has reports whether the key is there, with any value.
func (t *table) has(key string) bool {
	_, ok := t.said(key)
	return ok
}

// value returns the value of a key that holds, or nil.
func (t *table) value(key string) any {
	l, _ := t.said(key)
	return l.values[key]
}

// place returns the layer at which a problem with a key is reported. A built-in resource has no file.
func (t *table) place(key string) layer {
	if l, _ := t.said(key); l.file != nil {
		return l
	}
	return t.layers[len(t.layers)-1]
}

// reportf notes a problem with a key.
func (t *table) reportf(key, format string, args ...any) {
	l := t.place(key)
	l.file.reportf(l.at(key), format, args...)
}

// reportBelowf notes a problem with a property in the table that is the value of a key.
func (t *table) reportBelowf(key, property, format string, args ...any) {
	l := t.place(key)
	l.file.reportf(append(l.at(key), property), format, args...)
}

// check notes a problem with a key unless err is nil.
func (t *table) check(key string, err error) {
	if err != nil {
		t.reportf(key, "%s", err)
	}
}

// require notes that a key is missing, and what it should be.
func (t *table) require(key, wanted string) {
	if !t.has(key) {
		t.reportf(key, "is missing: %s", wanted)
	}
}

// end notes which keys of the table no method has taken.
func (t *table) end() {
	for _, l := range t.layers {
		if l.file == nil {
			continue
		}
		for _, key := range t.known {
			path := unnumbered(l.at(key))
			l.file.known[path.String()] = path
		}
		for _, key := range slices.Sorted(maps.Keys(l.values)) {
			if !slices.Contains(t.known, key) {
				l.file.unknown = append(l.file.unknown, l.at(key))
			}
		}
	}
}

// take returns the value of a key if it is there and of the right type, which wanted names. A value that a later file
// overrides must have that type too.
func take[T any](t *table, key, wanted string) (value T, ok bool) {
	t.known = append(t.known, key)
	for _, l := range t.layers {
		said, there := l.values[key]
		if !there {
			continue
		}
		if value, ok = said.(T); !ok {
			l.file.reportf(l.at(key), "is %s, not %s", typeName(said), wanted)
		}
	}
	return value, ok
}

// text takes a string.
func (t *table) text(key string, to *string) bool { return set(t, key, "a string in quotes", to) }

// checked takes a string and notes a problem with it.
func (t *table) checked(key string, to *string, check func(string) error) {
	if t.text(key, to) {
		t.check(key, check(*to))
	}
}

// boolean takes true or false.
func (t *table) boolean(key string, to *bool) bool { return set(t, key, "true or false", to) }

func set[T any](t *table, key, wanted string, to *T) bool {
	value, ok := take[T](t, key, wanted)
	if ok {
		*to = value
	}
	return ok
}

// number takes an integer from least to most.
func (t *table) number(key string, least, most int, to *int) {
	n, ok := take[int64](t, key, "an integer")
	if ok && (n < int64(least) || n > int64(most)) {
		t.reportf(key, "%d is not between %d and %d", n, least, most)
	} else if ok {
		*to = int(n)
	}
}

// choice takes one of the words. noun is their common name in the error.
func (t *table) choice(key, noun string, to *string, words ...string) bool {
	word, ok := take[string](t, key, "a string in quotes")
	if ok && !slices.Contains(words, word) {
		t.reportf(key, "%s is not a %s: %s", quoted(word), noun, alternatives(words))
		return false
	}
	if ok {
		*to = word
	}
	return ok
}

// duration takes a time span longer than nothing.
func (t *table) duration(key string, to *time.Duration) bool {
	text, ok := take[string](t, key, `a duration such as "20s"`)
	d, err := time.ParseDuration(text)
	if ok && (err != nil || d <= 0) {
		t.reportf(key, `%s is not a duration above 0s such as "20s" or "1h30m"`, quoted(text))
		return false
	}
	if ok {
		*to = d
	}
	return ok
}

// table takes a table of which each key can be overridden alone. It is empty if it is not there.
func (t *table) table(key string) *table {
	sub := &table{}
	take[map[string]any](t, key, fmt.Sprintf("a table: write [%s]", spelt(t.layers[len(t.layers)-1].at(key))))
	for _, l := range t.layers {
		values, _ := l.values[key].(map[string]any)
		sub.layers = append(sub.layers, layer{file: l.file, path: l.at(key), values: values})
	}
	return sub
}

// whole takes a table that is overridden as a whole. It is empty if it is not there.
func (t *table) whole(key string) *table {
	values, _ := take[map[string]any](t, key, fmt.Sprintf("a table: write [%s]", spelt(t.layers[len(t.layers)-1].at(key))))
	l, _ := t.said(key)
	return &table{layers: []layer{{file: l.file, path: l.at(key), values: values}}}
}

// tables takes an array of tables of one file.
func (l layer) tables(key string) []layer {
	if array, ok := l.values[key].([]any); ok && len(array) == 0 { // resource = []
		return nil
	}
	array, _ := take[[]map[string]any](&table{layers: []layer{l}}, key, fmt.Sprintf("an array of tables: write [[%s]]", key))
	all := make([]layer, len(array))
	for i, values := range array {
		all[i] = layer{file: l.file, path: append(l.at(key), fmt.Sprint(i)), values: values}
	}
	return all
}

// typeName names the type of a value for people.
func typeName(value any) string {
	switch value.(type) {
	case string:
		return "a string"
	case int64:
		return "an integer"
	case float64:
		return "a float"
	case bool:
		return "a boolean"
	case time.Time:
		return "a date or time"
	case map[string]any:
		return "a table"
	case []map[string]any:
		return "an array of tables"
	default:
		return "an array"
	}
}
