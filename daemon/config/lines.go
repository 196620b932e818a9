// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

// resourceKey is the name of the only array of tables in a file.
const resourceKey = "resource"

// lineIndex maps keys to their lines. An example of a key is "resource.0.name", where 0 is the number of the table.
type lineIndex map[string]int

// newLineIndex combines the keys of a document from the parser ([toml.MetaData.Keys]) with the lines from the function
// [keyLines], which returns them in the same order.
func newLineIndex(lines []int, keys []toml.Key) lineIndex {
	index := make(lineIndex, len(keys))
	element := -1 // index of the current resource table
	for i, path := range keys[:min(len(keys), len(lines))] {
		if path[0] == resourceKey {
			if len(path) == 1 {
				element++
			}
			path = append(toml.Key{resourceKey, strconv.Itoa(element)}, path[1:]...)
		}
		// A table can occur twice, for example as [resource.reset] after reset.method. The line of a table is the line of
		// its first occurrence, even if the table is only a part of a key there.
		for ; len(path) > 0; path = path[:len(path)-1] {
			if _, ok := index[path.String()]; !ok {
				index[path.String()] = lines[i]
			}
		}
	}
	return index
}

// line returns the line of the value at path, or of the nearest enclosing table in the file. The result is at least 1.
func (x lineIndex) line(path toml.Key) int {
	for ; len(path) > 0; path = path[:len(path)-1] {
		if line, ok := x[path.String()]; ok {
			return line
		}
	}
	return 1
}

// keyLines returns the lines of all table headers and keys in a well-formed document, in order. Outside strings and
// comments, "=" always follows a key, and "[" at the beginning of a statement starts a header.
func keyLines(text string) (lines []int) {
	line, depth, statement := 1, 0, true
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
			statement = depth == 0
		case '[', '{':
			if statement {
				lines = append(lines, line)
			}
			depth++
			statement = false
		case ']', '}':
			depth--
		case '=':
			lines = append(lines, line)
			statement = false
		}
		text = text[n:]
	}
	return lines
}

// stringSize returns the size of the string at the beginning of text, including its quotes. stringSize handles all four kinds of
// strings.
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
			// A multi-line string may end with one or two quotes that belong to its text.
			for len(end) == 3 && strings.HasPrefix(text[i:], quote) {
				i++
			}
			return i
		}
	}
	return len(text)
}
