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
	Line int    // in File, from 1, or 0 for the file as a whole
	Key  string // the dotted key as TOML writes it, "resource.reset.method", or empty
	What string // is wrong
}

// String returns the problem as FILE:LINE: KEY: TEXT.
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

// Problems is the error of a configuration that cannot be used. It has all errors, is never empty, and is in the order in
// which the files are read and by line.
type Problems []Problem

// Error returns all problems, one a line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}
	return strings.Join(lines, "\n")
}

// quoted returns a text of a file in quotes, and no more than its first 80 characters.
func quoted(s string) string { return fmt.Sprintf("%.80q", s) }

// plain returns a text of a file without quotes, on one line, and no more than its first 160 characters.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, fmt.Sprintf("%.160s", s))
}

// alternatives joins words to "a, b or c".
func alternatives(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
