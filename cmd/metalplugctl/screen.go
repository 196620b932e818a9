// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"

	"golang.org/x/sys/unix"
)

// Control sequences of a terminal (ECMA-48 SGR, CUP and ED). The colours of table cells have the same length.
const (
	plain  = "\x1b[39m"
	green  = "\x1b[32m"
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	bold   = "\x1b[1m"
	normal = "\x1b[0m"

	clearScreen = "\x1b[H\x1b[J"
)

// screen is text that is written in one piece, so that a terminal does not flicker and a pipe that closes is noticed once.
type screen struct {
	bytes.Buffer
	colours bool
}

// show writes a state, as JSON or as table lays it out. A live one takes the place of the last one on a terminal, and is one
// line of JSON.
func show(out io.Writer, output format, live bool, state any, table func(*screen)) error {
	terminal := isTerminal(out)
	s := &screen{colours: terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if output == "json" {
		encoder := json.NewEncoder(s)
		if !live {
			encoder.SetIndent("", "  ")
		}
		if err := encoder.Encode(state); err != nil {
			return err
		}
	} else {
		if live && terminal {
			s.WriteString(clearScreen)
		}
		table(s)
	}
	_, err := s.WriteTo(out)
	return err
}

// isTerminal reports whether a terminal shows what is written to out.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// paint returns text in a colour, if there are any.
func (s *screen) paint(colour, text string) string {
	if !s.colours || colour == "" {
		return text
	}
	return colour + text + normal
}

// line writes text after a mark, however wide the terminal is, for one line can be searched for.
func (s *screen) line(mark, colour, text string) {
	s.WriteString(strings.TrimRight(s.paint(colour, clean(mark))+clean(text), " ") + "\n")
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

// table writes rows in columns, without lines between them, so that it can be cut and sorted. The head is the first
// row. With colours each cell has one, since tabwriter counts the bytes of a colour as columns.
func (s *screen) table(indent string, rows ...[]cell) {
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		texts := make([]string, len(row))
		for i, c := range row {
			texts[i] = s.paint(cmp.Or(c.colour, plain), clean(c.text))
		}
		fmt.Fprintln(w, strings.Join(texts, "\t"))
	}
	w.Flush()
	for line := range strings.Lines(text.String()) {
		s.WriteString(indent + strings.TrimRight(line, " \n") + "\n")
	}
}
