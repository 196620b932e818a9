// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	// plainWidth is how wide the output is that goes to no terminal, in columns, and the most that is used of one.
	plainWidth = 100
	// leastWidth is the narrowest terminal that is made room for.
	leastWidth = 20
)

// Colours of a terminal (ECMA-48 SGR).
const (
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
		s.width = max(leastWidth, min(int(size.Col), plainWidth))
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

// paragraph writes text, after a mark of its own in the first line, in lines that are not longer than the screen is
// wide. Further lines begin below the text. A mark that leaves too little room for that, as the name of a resource, which
// may have 308 bytes, has lines of its own.
func (s *screen) paragraph(indent int, mark, colour, text string) {
	room := s.width - indent - utf8.RuneCountInString(mark)
	if room < max(leastWidth/2, s.width/3) && mark != "" {
		for _, line := range wrap(mark, max(leastWidth/2, s.width-indent)) {
			fmt.Fprintf(s, "%*s%s\n", indent, "", s.paint(colour, line))
		}
		indent, mark, room = indent+2, "", s.width-indent-2
	}
	for i, line := range wrap(clean(text), max(leastWidth/2, room)) {
		if i > 0 {
			mark = strings.Repeat(" ", utf8.RuneCountInString(mark))
		}
		fmt.Fprintf(s, "%*s%s%s\n", indent, "", s.paint(colour, mark), line)
	}
}

// wrap cuts text into lines of at most room columns, between words where that can be done.
func wrap(text string, room int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		for utf8.RuneCountInString(word) > room {
			if line != "" {
				lines, line = append(lines, line), ""
			}
			at := len(string([]rune(word)[:room]))
			lines, word = append(lines, word[:at]), word[at:]
		}
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= room:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	if line != "" || len(lines) == 0 {
		lines = append(lines, line)
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

// table writes rows in columns, without lines between them: what is written can be cut and sorted. A last cell that does
// not fit is written below its row; where the other columns are wider than the screen already, each row is a paragraph.
func (s *screen) table(indent int, head []string, rows [][]cell) {
	names := make([]cell, len(head))
	for i, name := range head {
		names[i].text = name
	}
	s.columns(indent, head, append([][]cell{names}, rows...), 1)
}

// rows writes rows as [screen.table] does, without the names of the columns.
func (s *screen) rows(indent int, head []string, rows [][]cell) { s.columns(indent, head, rows, 0) }

// columns writes rows in columns; so many of the first are the head of the table.
func (s *screen) columns(indent int, head []string, rows [][]cell, heads int) {
	last := len(head) - 1
	widths := make([]int, len(head))
	least := indent + utf8.RuneCountInString(head[last])
	for i := range head {
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(clean(row[i].text)))
		}
		if i < last {
			least += widths[i] + 2
		}
	}
	if least > s.width {
		s.stacked(indent, head, rows[heads:])
		return
	}
	for _, row := range rows {
		line, used := "", indent
		for i, c := range row {
			text := clean(c.text)
			size := utf8.RuneCountInString(text)
			if used += widths[i] + 2; i == last {
				if used = used - widths[i] - 2 + size; used > s.width {
					break
				}
			}
			line += s.paint(c.colour, text) + strings.Repeat(" ", widths[i]+2-size)
		}
		fmt.Fprintf(s, "%*s%s\n", indent, "", strings.TrimRight(line, " "))
		if used > s.width {
			s.paragraph(indent+2, "", "", strings.TrimSpace(strings.ToLower(head[last])+" "+row[last].text))
		}
	}
}

// stacked writes each row as a paragraph: the first cell alone, then the others with the names of their columns. What
// is empty is left out.
func (s *screen) stacked(indent int, head []string, rows [][]cell) {
	for _, row := range rows {
		s.paragraph(indent, "", "", row[0].text)
		var rest []string
		for i, c := range row[1:] {
			switch {
			case c.text == "" || c.text == "-":
			case i == 0:
				rest = append(rest, c.text)
			default:
				rest = append(rest, strings.ToLower(head[i+1])+" "+c.text)
			}
		}
		if len(rest) > 0 {
			s.paragraph(indent+2, "", "", strings.Join(rest, ", "))
		}
	}
}
