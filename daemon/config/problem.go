// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/internal/fsutil"
)

// Problem is an error in a configuration.
type Problem struct {
	File string `json:"file"`
	Line int    `json:"line,omitempty"` // line in File, counted from 1, or 0 if the error is about the whole file
	Key  string `json:"key,omitempty"`  // the dotted TOML key, such as "resource.reset.method", or empty
	What string `json:"what"`           // description of the error
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

// Problems is the error for an invalid configuration. Problems contains all errors and is never empty. The errors are sorted by
// file and then by line. The files come in the order in which metalplug reads them.
type Problems []Problem

// Error returns all problems, one on each line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}
	return strings.Join(lines, "\n")
}

// quote returns the first 80 characters of a text, in quotes.
func quote(s string) string { return fmt.Sprintf("%.80q", s) }

// oneLine returns the first 160 characters of a text, on one line and without quotes.
func oneLine(s string) string { return fsutil.Printable(fmt.Sprintf("%.160s", s)) }

// Alternatives joins words in the form "a, b or c".
func Alternatives(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// suggestWord returns a suggestion that can be appended to an error message. The suggestion names the element of the list "words"
// that the operator probably meant.
func suggestWord(word string, words []string) string {
	lower := strings.ReplaceAll(strings.ToLower(strings.TrimSpace(word)), "_", "-")
	if isPCIReset("pci:"+lower) && slices.Contains(words, "pci") {
		return `; did you mean "pci:` + lower + `"?`
	}
	if meant := mostSimilar(lower, words); meant != "" {
		return "; did you mean " + quote(meant) + "?"
	}
	return "; write one of them"
}

// mostSimilar returns the word that is most similar to a name. The name may also be an abbreviation, such as "perm" or "perms"
// for "permissions". If there is no such word, mostSimilar returns "".
func mostSimilar(name string, words []string) string {
	for edits := range min(2, len(name)/2) + 1 {
		for _, word := range words {
			if distance(name, word) <= edits || len(name) > 2 && strings.HasPrefix(word, strings.TrimSuffix(name, "s")) {
				return word
			}
		}
	}
	return ""
}

// distance returns how many edits change a to b. An edit inserts, removes or replaces a letter, or swaps it with the next
// one.
func distance(a, b string) int {
	cost := make([][]int, len(a)+1) // cost of changing the first i letters of a to the first j letters of b
	for i := range cost {
		cost[i] = make([]int, len(b)+1)
		for j := range cost[i] {
			switch {
			case i == 0 || j == 0:
				cost[i][j] = i + j
			case a[i-1] == b[j-1]:
				cost[i][j] = cost[i-1][j-1]
			default:
				cost[i][j] = 1 + min(cost[i-1][j], cost[i][j-1], cost[i-1][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cost[i][j] = min(cost[i][j], cost[i-2][j-2]+1)
			}
		}
	}
	return cost[len(a)][len(b)]
}
