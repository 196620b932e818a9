// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/internal/fsutil"
)

// These control sequences set the colour of text in a terminal (ECMA-48 SGR).
const (
	green  = "\x1b[32m"
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	bold   = "\x1b[1m"
	normal = "\x1b[0m"
)

// screen collects text to write it in one call. The terminal then does not flicker, and a closed pipe causes one error instead of
// many.
type screen struct {
	bytes.Buffer
	colours bool
	width   int // width of the terminal in columns, or 0 for no limit, as for a pipe
}

// newScreen returns an empty screen for output to out. If out is not a terminal, the environment variable COLUMNS sets the width.
// The examples in the man page are made with this variable.
func newScreen(out io.Writer) *screen {
	width, _ := terminalSize(out)
	s := &screen{colours: width > 0 && os.Getenv("NO_COLOR") == "" && canMove(), width: width}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && width == 0 {
		s.width = columns
	}
	return s
}

// canMove reports whether the terminal supports control sequences, such as those that move the cursor.
func canMove() bool { return os.Getenv("TERM") != "" && os.Getenv("TERM") != "dumb" }

// control is a regular expression for control characters that encoding/json does not escape. The characters in the last two ranges change the text
// direction.
const control = `[\x7f-\x{9f}\x{202a}-\x{202e}\x{2066}-\x{2069}]`

// escape returns the JSON escape sequence for a control character, because a terminal could interpret the character itself.
func escape(character []byte) []byte { return fmt.Appendf(nil, `\u%04x`, []rune(string(character))[0]) }

// show writes a state as JSON, or as the text that the function table writes. If compact is true, the JSON has one line.
func show(out io.Writer, output string, compact bool, state any, table func(*screen)) error {
	s := newScreen(out)
	if output == "json" {
		encoder := json.NewEncoder(s)
		if !compact {
			encoder.SetIndent("", "  ")
		}
		if err := encoder.Encode(state); err != nil {
			return err
		}
		s.Buffer = *bytes.NewBuffer(regexp.MustCompile(control).ReplaceAllFunc(s.Bytes(), escape))
	} else {
		table(s)
	}
	_, err := s.WriteTo(out)
	return err
}

// terminalSize returns the number of columns and rows of the terminal that out writes to. Both numbers are 0 if out is not a
// terminal.
func terminalSize(out io.Writer) (width, height int) {
	f, ok := out.(*os.File)
	if !ok {
		return 0, 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	if size.Col == 0 || size.Row == 0 { // a serial line does not report a size
		return 80, 24
	}
	return int(size.Col), int(size.Row)
}

// paint returns a text in the given colour, if colours are enabled.
func (s *screen) paint(colour, text string) string {
	if !s.colours || colour == "" {
		return text
	}
	return colour + text + normal
}

// line writes a mark, such as "warning: ", followed by a text. If the width is unlimited, the output is a single line, so that
// tools can search it.
func (s *screen) line(mark, colour, text string) {
	mark, lines := clean(mark), []string{clean(text)}
	if s.width > 0 && len(mark) > s.width/2 { // the text begins on a new line
		if strings.TrimSpace(mark) != "" {
			s.WriteString(s.paint(colour, strings.TrimRight(mark, " ")) + "\n")
		}
		mark = deeper
	}
	if s.width > 0 {
		lines = wrapText(lines[0], s.width-len(mark))
	}
	for i, line := range lines {
		if i > 0 {
			mark = strings.Repeat(" ", len(mark))
		}
		s.WriteString(strings.TrimRight(s.paint(colour, mark)+line, " ") + "\n")
	}
}

// wrapText breaks text between words into lines of at most width columns. wrapText does not break a word that is longer than a
// line, so that users can copy the word.
func wrapText(text string, width int) (lines []string) {
	width = max(width, 8)
	line := ""
	for _, word := range strings.Split(text, " ") {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		} else if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// clean replaces control characters in a text, because parts of the text may come from hardware.
func clean(text string) string { return fsutil.Printable(text) }

// cleanLines returns an error's text without control characters. These characters may come from an argument, or from a name that
// hardware provides.
func cleanLines(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		lines[i] = clean(line)
	}
	return strings.Join(lines, "\n")
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

// The constant "gap" separates two columns of a table. The constant "deeper" is the second line's indentation if a row is wider
// than the terminal.
const (
	gap    = "  "
	deeper = "    "
)

// table writes rows in columns, without separator lines, so that tools such as cut and sort can process them. The first row is
// the header. The last cell in a row may be wider than its column.
func (s *screen) table(indent string, rows ...[]cell) {
	var widths []int
	for _, row := range rows {
		for i := range row {
			row[i].text = clean(row[i].text)
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if i < len(row)-1 {
				widths[i] = max(widths[i], utf8.RuneCountInString(row[i].text))
			}
		}
	}
	for _, row := range rows {
		s.row(indent, widths, row)
	}
}

// row writes a row of a table.
func (s *screen) row(indent string, widths []int, row []cell) {
	line, used := indent, len(indent)
	flush := func(next string) {
		s.WriteString(strings.TrimRight(line, " ") + "\n")
		line, used = next, len(next)
	}
	for i, c := range row {
		length := utf8.RuneCountInString(c.text)
		width := widths[i]
		if i == len(row)-1 {
			width = length
		}
		if s.width > 0 && used+width > s.width && used > len(indent+deeper) {
			flush(indent + deeper)
		}
		if s.width > 0 && used+length > s.width {
			parts := wrapText(c.text, s.width-used)
			for _, part := range parts[:len(parts)-1] {
				line += s.paint(c.colour, part)
				flush(strings.Repeat(" ", used))
			}
			c.text = parts[len(parts)-1]
			length = utf8.RuneCountInString(c.text)
		}
		line += s.paint(c.colour, c.text) + strings.Repeat(" ", max(0, width-length)) + gap
		used += width + len(gap)
	}
	flush("")
}
