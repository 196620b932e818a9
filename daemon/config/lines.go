// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

// resourceKey is the one array of tables that the file has.
const resourceKey = "resource"

// lineIndex knows the line of each key of a file by its path, which is the dotted key, in which the number of the table,
// from 0, follows "resource".
type lineIndex map[string]int

// newLineIndex joins the keys of a document, which the parser tells in the order in which they stand
// ([toml.MetaData.Keys]), with their lines, which [keyLines] finds in the same order.
func newLineIndex(lines []int, keys []toml.Key) lineIndex {
	index := make(lineIndex, len(keys))
	element := -1 // of resourceKey, that the keys are in
	for i, path := range keys[:min(len(keys), len(lines))] {
		if path[0] == resourceKey {
			if len(path) == 1 {
				element++
			}
			path = append(toml.Key{resourceKey, strconv.Itoa(element)}, path[1:]...)
		}
		// A table can be named again, by [resource.reset] after reset.method. The first place counts.
		if _, ok := index[path.String()]; !ok {
			index[path.String()] = lines[i]
		}
	}
	return index
}

// line returns the line of the value at path, or of the nearest table around it that is written down. It is at least 1.
func (x lineIndex) line(path toml.Key) int {
	for ; len(path) > 0; path = path[:len(path)-1] {
		if line, ok := x[path.String()]; ok {
			return line
		}
	}
	return 1
}

// keyLines returns the line of each table header and of each key of a well-formed document, in their order. Outside
// strings and comments "=" always follows a key, and "[" at the beginning of a statement opens a header.
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
