// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	File string
	Line int    // in File, from 1; 0 if the file as a whole is meant
	Key  string // the dotted key as TOML writes it, "resource.reset.method"; empty if none is meant
	What string // is wrong
}

// String returns the problem as FILE:LINE: key: what.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if p.Key != "" {
		b.WriteString(": " + p.Key)
	}
	b.WriteString(": " + p.What)
	return b.String()
}

// Problems is the error of a configuration that cannot be used: all that is wrong, never empty, in the order in which
// the files are read and by line.
type Problems []Problem

// Error returns all problems, one a line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}
	return strings.Join(lines, "\n")
}

// shown is the most of a text from a file that a problem repeats, in bytes.
const shown = 80

// quoted returns what a file says, in quotes and not at boundless length.
func quoted(s string) string { return fmt.Sprintf("%q", shortened(s, shown)) }

// plain returns what a file says without quotes: on one line, and not at boundless length.
func plain(s string, size int) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, shortened(s, size))
}

// shortened returns s, cut off where it is longer than size bytes.
func shortened(s string, size int) string {
	if len(s) <= size {
		return s
	}
	end := size
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// alternatives joins words to "a, b or c".
func alternatives(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// quotedAll returns each word in quotes.
func quotedAll(words []string) []string {
	all := make([]string, len(words))
	for i, word := range words {
		all[i] = quoted(word)
	}
	return all
}
