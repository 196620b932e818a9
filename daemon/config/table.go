// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/BurntSushi/toml"
)

// table is a table of a file. Its methods take the value of a key; what none has asked for in the end is unknown.
type table struct {
	file   *file
	path   toml.Key
	values map[string]any // empty for a table that the file does not have
	known  []string       // the keys that were asked for
}

// at returns the path of a key of the table.
func (t *table) at(key string) toml.Key { return append(slices.Clone(t.path), key) }

// has tells whether the key is there, whatever its value.
func (t *table) has(key string) bool {
	_, ok := t.values[key]
	return ok
}

// reportf notes a problem with a key.
func (t *table) reportf(key, format string, args ...any) { t.file.reportf(t.at(key), format, args...) }

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

// end notes which keys of the table nobody has asked for.
func (t *table) end() {
	for _, key := range t.known {
		path := unnumbered(t.at(key))
		t.file.known[path.String()] = path
	}
	for _, key := range slices.Sorted(maps.Keys(t.values)) {
		if !slices.Contains(t.known, key) {
			t.file.unknown = append(t.file.unknown, t.at(key))
		}
	}
}

// take returns the value of a key if it is there and of the right type, which wanted names.
func take[T any](t *table, key, wanted string) (value T, ok bool) {
	t.known = append(t.known, key)
	if !t.has(key) {
		return value, false
	}
	if value, ok = t.values[key].(T); !ok {
		t.reportf(key, "is %s, not %s", typeName(t.values[key]), wanted)
	}
	return value, ok
}

// text takes a string.
func (t *table) text(key string, to *string) bool { return set(t, key, "a string", to) }

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
func (t *table) number(key string, least, most int, to *int) bool {
	n, ok := take[int64](t, key, "an integer")
	if ok && (n < int64(least) || n > int64(most)) {
		t.reportf(key, "%d is not between %d and %d", n, least, most)
		return false
	}
	if ok {
		*to = int(n)
	}
	return ok
}

// choice takes one of the words, which noun says what they are.
func (t *table) choice(key, noun string, to *string, words ...string) bool {
	word, ok := take[string](t, key, "a string")
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
	if !ok {
		return false
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		t.reportf(key, `%s is no duration such as "20s" or "1h30m"`, quoted(text))
	case d <= 0:
		t.reportf(key, "%s is not longer than 0s", d)
	default:
		*to = d
		return true
	}
	return false
}

// table takes a table; an empty one if it is not there.
func (t *table) table(key string) *table {
	values, _ := take[map[string]any](t, key, fmt.Sprintf("a table: write [%s]", spelt(t.at(key))))
	return &table{file: t.file, path: t.at(key), values: values}
}

// tables takes an array of tables.
func (t *table) tables(key string) []*table {
	var all []*table
	for i, values := range tablesIn(t, key) {
		all = append(all, &table{file: t.file, path: append(t.at(key), fmt.Sprint(i)), values: values})
	}
	return all
}

// tablesIn takes an array of tables in either of the ways in which TOML can write it.
func tablesIn(t *table, key string) []map[string]any {
	if array, ok := t.values[key].([]any); ok {
		all := make([]map[string]any, 0, len(array))
		for _, element := range array {
			if values, ok := element.(map[string]any); ok {
				all = append(all, values)
			}
		}
		if len(all) == len(array) {
			t.known = append(t.known, key)
			return all
		}
	}
	all, _ := take[[]map[string]any](t, key, fmt.Sprintf("an array of tables: write [[%s]]", key))
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
