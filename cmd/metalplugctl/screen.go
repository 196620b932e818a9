// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// plainWidth is how wide paragraphs are that go to no terminal, in columns, and the most that is used of one.
const plainWidth = 100

// Colours of a terminal (ECMA-48 SGR). Those of table cells have the same length.
const (
	plain  = "\x1b[39m"
	green  = "\x1b[32m"
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	bold   = "\x1b[1m"
	normal = "\x1b[0m"
)

// screen is text that is laid out for a width and written in one piece, so that a terminal does not flicker and a pipe
// that closes is noticed once. Widths are counted in characters: nothing that hardware says of itself is wider than
// that.
type screen struct {
	bytes.Buffer
	width   int
	colours bool
}

// newScreen returns a screen for whoever reads out.
func newScreen(out io.Writer) *screen {
	s := &screen{width: plainWidth}
	f, ok := out.(*os.File)
	if !ok || !isTerminal(out) {
		return s
	}
	s.colours = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
		s.width = min(int(size.Col), plainWidth)
	}
	return s
}

// paint returns text in a colour, if there are any.
func (s *screen) paint(colour, text string) string {
	if !s.colours || colour == "" {
		return text
	}
	return colour + text + normal
}

// paragraph writes text after a mark, in lines of the width of the screen that begin below the text.
func (s *screen) paragraph(indent int, mark, colour, text string) {
	hang := indent + utf8.RuneCountInString(mark)
	mark = s.paint(colour, clean(mark))
	for i, line := range wrap(clean(text), s.width-hang) {
		if i > 0 {
			indent, mark = hang, ""
		}
		fmt.Fprintf(s, "%*s%s%s\n", indent, "", mark, line)
	}
}

// wrap cuts text between words into lines of at most room columns, if no word is longer.
func wrap(text string, room int) []string {
	lines := []string{""}
	for word := range strings.FieldsSeq(text) {
		switch last := &lines[len(lines)-1]; {
		case *last == "":
			*last = word
		case utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) <= room:
			*last += " " + word
		default:
			lines = append(lines, word)
		}
	}
	return lines
}

// clean takes out of a text, some of which is what hardware says of itself, all that could steer a terminal.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// cell is one field of a table.
type cell struct {
	text, colour string
}

// cells returns the fields of a row.
func cells(texts ...string) []cell {
	row := make([]cell, len(texts))
	for i, text := range texts {
		row[i].text = text
	}
	return row
}

// table writes rows in columns, without lines between them: what is written can be cut and sorted. The head is the first
// row. With colours each cell has one, since tabwriter counts the bytes of a colour as columns.
func (s *screen) table(indent int, rows ...[]cell) {
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintf(w, "%*s", indent, "")
		for i, c := range row {
			if i > 0 {
				io.WriteString(w, "\t")
			}
			io.WriteString(w, s.paint(cmp.Or(c.colour, plain), clean(c.text)))
		}
		io.WriteString(w, "\n")
	}
	w.Flush()
	for line := range strings.Lines(text.String()) {
		s.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
}
