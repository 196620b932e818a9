// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// view shows a state on the alternate screen of a terminal. view redraws the state after each change, and the user can scroll
// with keys. view restores the terminal at the end. The methods of view are safe for concurrent use.
type view struct {
	out   *os.File
	leave context.CancelFunc

	mu    sync.Mutex
	draw  func(*screen) // nil before the first state
	notes []string      // lines that are shown below each state, newest last
	top   int           // index of the first visible line
	shown string        // text that the terminal currently shows
	err   error         // error of the last write
}

// maxNotes is the maximum number of notes on the screen.
const maxNotes = 3

// The view uses these control sequences (xterm's ctlseqs, "DEC Private Mode Set"). They switch to the alternate screen, turn off
// the cursor and line wrapping, move the cursor (CUP) and clear text (EL, ED).
const (
	openView  = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	closeView = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	home      = "\x1b[H"
	endLine   = "\x1b[K"
	endScreen = "\x1b[J"
	reverse   = "\x1b[7m"
)

// keys lists the keys and their actions. An action scrolls by lines or pages, or quits the view.
var keys = []struct {
	codes        []string
	lines, pages int
	leave        bool
}{
	{codes: []string{"q"}, leave: true},
	{codes: []string{"\x1b[A", "\x1bOA", "k"}, lines: -1},
	{codes: []string{"\x1b[B", "\x1bOB", "j", "\r", "\n"}, lines: 1},
	{codes: []string{"\x1b[5~", "b"}, pages: -1},
	{codes: []string{"\x1b[6~", "f", " "}, pages: 1},
	{codes: []string{"\x1b[H", "\x1b[1~", "\x1bOH", "g"}, pages: -1 << 20},
	{codes: []string{"\x1b[F", "\x1b[4~", "\x1bOF", "G"}, pages: 1 << 20},
}

// isLive reports whether out is a terminal that can show a view.
func isLive(out io.Writer) bool {
	width, _ := terminalSize(out)
	return width > 0 && canMove()
}

// live calls the function "run" with a view on the command's terminal, or with nil if the output cannot show a view. When the
// user quits the view, the command's context ends. Until run returns, the view shows the errors that the command writes to the
// terminal.
func live(cmd *cobra.Command, output string, once bool, run func(*view) error) error {
	if once || output == "json" || !isLive(cmd.OutOrStdout()) {
		return run(nil)
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	cmd.SetContext(ctx)
	v := &view{out: cmd.OutOrStdout().(*os.File), leave: cancel}
	if errors := cmd.ErrOrStderr(); isLive(errors) {
		cmd.SetErr(v)
		defer cmd.SetErr(errors)
	}
	fd := int(v.out.Fd())
	if before, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
		raw := *before
		raw.Lflag &^= unix.ICANON | unix.ECHO
		raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 0, 2 // reads return after at most 0.2 s, so that readKeys can end
		raw.Cc[unix.VSUSP] = 0                       // Ctrl-Z would leave the shell on the alternate screen
		_ = unix.IoctlSetTermios(fd, unix.TCSETS, &raw)
		defer unix.IoctlSetTermios(fd, unix.TCSETSF, before)
	}
	fmt.Fprint(v.out, openView)
	defer fmt.Fprint(v.out, closeView)
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	defer signal.Stop(resized)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	readers.Go(func() { v.readKeys(ctx, resized) })
	return run(v)
}

// Write adds lines to the notes in the view.
func (v *view) Write(text []byte) (int, error) {
	return len(text), v.change(func() {
		v.notes = append(v.notes, strings.Split(strings.TrimSpace(string(text)), "\n")...)
		v.notes = v.notes[max(0, len(v.notes)-maxNotes):]
	})
}

// show replaces the state with a new one. If v is nil, the method calls the function [show] instead.
func (v *view) show(out io.Writer, output string, compact bool, state any, draw func(*screen)) error {
	if v == nil {
		return show(out, output, compact, state, draw)
	}
	return v.change(func() { v.draw = draw })
}

// change locks the view, calls the given function, and redraws the view. change returns the last write's error.
func (v *view) change(update func()) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	update()
	if frame := v.frame(); frame != v.shown && v.err == nil {
		v.shown = frame
		_, v.err = io.WriteString(v.out, frame)
	}
	return v.err
}

// frame returns the text to write to the terminal. The new lines overwrite the old ones, so that the terminal does not flicker.
func (v *view) frame() string {
	s := newScreen(v.out)
	_, height := terminalSize(v.out)
	if v.draw != nil {
		v.draw(s)
	}
	body := strings.Split(strings.TrimRight(s.String(), "\n"), "\n")
	s.Reset()
	for _, note := range v.notes {
		s.line("", "", note)
	}
	notes := strings.SplitAfter(s.String(), "\n")
	notes = notes[:min(len(notes)-1, max(0, height-2))]
	rows := max(1, height-1-len(notes))
	v.top = max(0, min(v.top, len(body)-rows))
	last := min(v.top+rows, len(body))
	var frame strings.Builder
	frame.WriteString(home)
	for _, line := range body[v.top:last] {
		frame.WriteString(line + endLine + "\n")
	}
	frame.WriteString(endScreen)
	for _, note := range notes {
		frame.WriteString(s.paint(yellow, strings.TrimSuffix(note, "\n")) + endLine + "\n")
	}
	foot := "q quits"
	if rows < len(body) {
		foot += fmt.Sprintf("  %d-%d of %d lines: arrows, PgUp, PgDn, Home, End", v.top+1, last, len(body))
	}
	frame.WriteString(reverse + foot[:min(len(foot), s.width-1)] + normal + endLine)
	return frame.String()
}

// readKeys performs the action of each pressed key, until ctx ends. readKeys also redraws the view when a signal reports that the
// terminal size has changed.
func (v *view) readKeys(ctx context.Context, resized <-chan os.Signal) {
	buf := make([]byte, 64)
	for ctx.Err() == nil {
		n, err := v.out.Read(buf)
		if err != nil && err != io.EOF { // io.EOF means that no key was pressed
			return
		}
		if len(resized) > 0 {
			<-resized
			_ = v.change(func() {})
		}
		for typed := string(buf[:n]); typed != ""; {
			typed = v.press(typed)
		}
	}
}

// press performs the action of the first key in typed, and returns the rest of the input.
func (v *view) press(typed string) (rest string) {
	for _, key := range keys {
		for _, code := range key.codes {
			rest, ok := strings.CutPrefix(typed, code)
			if !ok {
				continue
			}
			if key.leave {
				v.leave()
			}
			_, height := terminalSize(v.out)
			_ = v.change(func() { v.top = max(0, v.top+key.lines+key.pages*max(1, height-2)) })
			return rest
		}
	}
	return typed[1:]
}
