// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

// resourceKey is the one array of tables that the file has.
const resourceKey = "resource"

// lineIndex knows on which line each key of a file stands, by its path: the dotted key, in which the number of the
// table, from 0, follows "resource".
type lineIndex map[string]int

// newLineIndex joins the keys of a document, which the parser tells in the order in which they stand
// ([toml.MetaData.Keys]), with their lines, which [keyLines] finds in the same order.
func newLineIndex(lines []int, tree map[string]any, keys []toml.Key) lineIndex {
	index := make(lineIndex, len(keys))
	at := &cursor{index: index, resources: tree[resourceKey], element: -1}
	for i := range min(len(keys), len(lines)) {
		path := at.path(keys[i])
		// A table can be named again, by [resource.reset] after reset.method; the first place is the one.
		if _, ok := index[path.String()]; !ok {
			index[path.String()] = lines[i]
		}
	}
	return index
}

// line returns the line of what is at path, or of the nearest table around it that is written down; at least 1.
func (x lineIndex) line(path toml.Key) int {
	for ; len(path) > 0; path = path[:len(path)-1] {
		if line, ok := x[path.String()]; ok {
			return line
		}
	}
	return 1
}

// cursor follows the keys of a document to number the tables of resourceKey.
type cursor struct {
	index     lineIndex
	resources any
	element   int // that the keys are in at present
}

// path returns the path of the next key.
func (c *cursor) path(key toml.Key) toml.Key {
	if key[0] != resourceKey {
		return key
	}
	switch resources := c.resources.(type) {
	case []map[string]any: // [[resource]]
		if len(key) == 1 {
			c.element++
		}
		return numbered(c.element, key[1:])
	case []any: // resource = [ { … }, … ]
		if len(key) == 1 {
			c.element = 0
			return key
		}
		c.advance(resources, key[1:])
		return numbered(c.element, key[1:])
	}
	return key
}

// advance moves on to the inline table that the next key is in: the first that has the key and has not shown it yet.
func (c *cursor) advance(resources []any, key toml.Key) {
	for ; c.element < len(resources); c.element++ {
		_, seen := c.index[numbered(c.element, key).String()]
		if !seen && defines(resources[c.element], key) {
			return
		}
	}
}

// defines tells whether a value has the key.
func defines(value any, key toml.Key) bool {
	for _, part := range key {
		table, ok := value.(map[string]any)
		if !ok {
			return false
		}
		if value, ok = table[part]; !ok {
			return false
		}
	}
	return true
}

func numbered(element int, key toml.Key) toml.Key {
	return append(toml.Key{resourceKey, strconv.Itoa(element)}, key...)
}

// deepest is how many tables may lie in each other, and how many parts a key may have. Ours have three; the parser needs
// gigabytes for some thousand.
const deepest = 16

// keyLines returns the line of each table header and of each key of a well-formed document, in their order. Outside
// strings and comments "=" always follows a key, and "[" at the beginning of a statement opens a header. What is nested
// deeper than deepest ends it: tooDeep is its line, else 0.
func keyLines(text string) (lines []int, tooDeep int) {
	line, depth, parts, statement := 1, 0, 1, true
	for len(text) > 0 {
		n := 1
		switch text[0] {
		case '#':
			n = len(text) - len(strings.TrimLeftFunc(text, func(r rune) bool { return r != '\n' }))
		case '"', '\'':
			n, statement = stringSize(text), false
			line += strings.Count(text[:n], "\n")
		case '\n':
			line++
			parts, statement = 1, depth == 0
		case '[', '{':
			if statement {
				lines = append(lines, line)
			}
			depth++
			parts, statement = 1, false
		case ']', '}':
			depth--
		case '=':
			lines = append(lines, line)
			parts, statement = 1, false
		case '.':
			parts++
		case ',':
			parts = 1
		}
		if depth > deepest || parts > deepest {
			return lines, line
		}
		text = text[n:]
	}
	return lines, 0
}

// stringSize returns the size of the string of any of the four kinds that text begins with, quotes included.
func stringSize(text string) int {
	quote := text[:1]
	end := quote
	if long := strings.Repeat(quote, 3); strings.HasPrefix(text, long) {
		end = long
	}
	for i := len(end); i < len(text); i++ {
		if quote == `"` && text[i] == '\\' {
			i++
		} else if strings.HasPrefix(text[i:], end) {
			i += len(end)
			// A long string may itself end with one or two quotes.
			for len(end) == 3 && strings.HasPrefix(text[i:], quote) {
				i++
			}
			return i
		}
	}
	return len(text)
}
