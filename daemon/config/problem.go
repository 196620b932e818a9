// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Problem is an error in a configuration.
type Problem struct {
	File string `json:"file"`
	Line int    `json:"line,omitempty"` // line in File, counted from 1; 0 means the whole file
	Key  string `json:"key,omitempty"`  // the dotted TOML key, such as "resource.reset.method", or empty
	What string `json:"what"`           // the description of the error
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

// Problems is the error of an invalid configuration. It has all errors, is never empty, and is sorted by the order in
// which the files are read, then by line.
type Problems []Problem

// Error returns all problems, one on each line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}
	return strings.Join(lines, "\n")
}

// quoted returns the first 80 characters of a text, quoted.
func quoted(s string) string { return fmt.Sprintf("%.80q", s) }

// plain returns the first 160 characters of a text on one line, without quotes.
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
