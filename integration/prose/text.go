// SPDX-License-Identifier: Apache-2.0

package prose

import (
	"fmt"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
)

// code replaces pieces of code in a sentence.
const code = "code"

// Go returns the paragraphs of the comments in a Go file. It omits directives, the licence and indented code.
func Go(name string, source []byte) ([]string, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse comments: %w", err)
	}
	var all []string
	for _, group := range parsed.Comments {
		var b builder
		for line := range strings.Lines(group.Text()) { // Text omits directives
			line = strings.TrimRight(line, "\n")
			switch {
			case strings.HasPrefix(line, "SPDX-") || strings.HasPrefix(line, "Copyright "):
			case strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "    "):
				b.cut()
			default:
				b.line(line)
			}
		}
		b.cut()
		all = append(all, b.paragraphs...)
	}
	return all, nil
}

// builder joins lines into paragraphs.
type builder struct {
	paragraphs []string
	open       []string
}

var (
	item = regexp.MustCompile(`^\s*(?:[-*•]|\d+\.|\(\d+\))\s+`)
	span = regexp.MustCompile("`+[^`]*`+")
	link = regexp.MustCompile(`!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])`)
)

func (b *builder) line(text string) {
	if strings.TrimSpace(text) == "" {
		b.cut()
		return
	}
	if item.MatchString(text) {
		b.cut()
		text = item.ReplaceAllString(text, "")
	}
	b.open = append(b.open, text)
}

func (b *builder) cut() {
	if len(b.open) > 0 {
		text := span.ReplaceAllString(strings.Join(b.open, " "), code)
		b.paragraphs = append(b.paragraphs, strings.NewReplacer("**", "", "__", "").Replace(link.ReplaceAllString(text, "$1")))
	}
	b.open = nil
}

// Markdown returns the paragraphs, list items and table cells of a page. It omits headings and code blocks.
func Markdown(page string) []string {
	var b builder
	fence := false
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		text := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(text, "```"):
			fence = !fence
			b.cut()
		case fence, strings.HasPrefix(text, "#"), strings.HasPrefix(text, "<!--"), strings.HasPrefix(text, "|--"):
			b.cut()
		case strings.HasPrefix(line, "    ") && len(b.open) == 0: // code
		case strings.HasPrefix(text, "|"):
			b.cut()
			for cell := range strings.SplitSeq(strings.ReplaceAll(text, `\|`, "/"), "|") {
				b.line(cell)
				b.cut()
			}
		default:
			b.line(line)
		}
	}
	b.cut()
	return b.paragraphs
}

// inline matches macros of mdoc that can be inside a sentence.
var inline = regexp.MustCompile(`^\.(?:Pa|Ql|Xr|Cm|Fl|Ar|Ev|Nm|Li|Dv|Em|Sy|Va|Pq|Dq|No)\b`)

// Man returns the paragraphs of a page in mdoc(7). It omits headings and displays.
func Man(page string) []string {
	var b builder
	display := false
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, ".Bd"), strings.HasPrefix(line, ".Ed"):
			display = strings.HasPrefix(line, ".Bd")
			b.cut()
		case display, strings.HasPrefix(line, `.\"`):
		case strings.HasPrefix(line, "@"): // docs.sh inserts a display there
			b.cut()
		case inline.MatchString(line):
			words := strings.Fields(line)
			if last := words[len(words)-1]; strings.Contains(".,;:)", last) && len(b.open) > 0 {
				b.line(code + last)
			} else {
				b.line(code)
			}
		case strings.HasPrefix(line, ".It"), strings.HasPrefix(line, ".Sh"), strings.HasPrefix(line, ".Pp"), strings.HasPrefix(line, "."):
			b.cut()
			if _, cell, ok := strings.Cut(line, " Ta "); ok {
				b.line(cell)
				b.cut()
			}
		default:
			b.line(line)
		}
	}
	b.cut()
	return b.paragraphs
}

// TOML returns the paragraphs of the comments in metalplug.toml, which are lines of "# text". It omits settings and
// examples.
func TOML(file string) []string {
	var b builder
	_, file, _ = strings.Cut(file, "\n") // the title
	for line := range strings.Lines(file) {
		line = strings.TrimRight(line, "\n")
		text, explains := strings.CutPrefix(line, "# ")
		if !explains || strings.HasPrefix(text, "    ") || strings.HasPrefix(text, "----") {
			b.cut()
			continue
		}
		b.line(text)
	}
	b.cut()
	return b.paragraphs
}
