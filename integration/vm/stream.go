//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/integration/vm/wire"
)

// Line is a line of output of a command in the machine.
type Line struct {
	Text string
	// Time is the time of the machine's clock when the agent read the line. It can be used to compare lines of two commands.
	Time time.Time
	// Uptime is the same moment by CLOCK_MONOTONIC.
	Uptime time.Duration
}

// Stream is the output of a running command in the machine. It stores all output, so a test may act first and check
// later.
type Stream struct {
	name string
	m    *Machine
	id   uint64

	mu    sync.Mutex
	lines []Line        // protected by mu
	grown chan struct{} // closed and replaced at each new line and at the end; protected by mu
	ended error         // reason why the output has ended, or nil; protected by mu
}

// Start runs a command in the background in the machine. Stop or the end of the machine ends the command.
func (m *Machine) Start(argv ...string) *Stream {
	m.t.Helper()
	s := &Stream{name: strings.Join(argv, " "), m: m, grown: make(chan struct{})}
	id, err := m.guest.request(wire.Frame{Op: wire.Start, Argv: argv}, nil, s.deliver)
	if err != nil {
		m.t.Fatalf("start %s: %v", s.name, err)
	}
	s.id = id
	return s
}

func (s *Stream) deliver(a message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case a.err != nil:
		s.ended = a.err
	case a.Op == wire.Done:
		s.ended = fmt.Errorf("exit code %d %s", a.Code, a.Err)
	default:
		s.lines = append(s.lines, Line{string(a.body), time.Unix(0, a.UnixNano), time.Duration(a.MonotonicNano)})
	}
	close(s.grown)
	s.grown = make(chan struct{})
}

// Stop kills the command, if it still runs, and waits for its end.
func (s *Stream) Stop() {
	s.m.t.Helper()
	if err := s.m.guest.write(wire.Frame{ID: s.id, Op: wire.Kill}, nil); err != nil {
		s.m.t.Fatalf("stop %s: %v", s.name, err)
	}
	deadline := time.After(s.m.slower * commandTimeout)
	for {
		s.mu.Lock()
		grown, ended := s.grown, s.ended
		s.mu.Unlock()
		if ended != nil {
			return
		}
		select {
		case <-grown:
		case <-deadline:
			s.m.t.Fatalf("stop %s: still runs", s.name)
		}
	}
}

// Send writes a line to the command's standard input.
func (s *Stream) Send(line string) {
	s.m.t.Helper()
	if err := s.m.guest.write(wire.Frame{ID: s.id, Op: wire.Input}, []byte(line+"\n")); err != nil {
		s.m.t.Fatalf("send to %s: %v", s.name, err)
	}
}

// Mark returns the current position in the output.
func (s *Stream) Mark() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lines)
}

// Lines returns the lines since a mark.
func (s *Stream) Lines(from int) []Line {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines[from:len(s.lines):len(s.lines)]
}

// Await returns the first matching line since a mark. It fails after the timeout, or if the command has ended.
func (s *Stream) Await(from int, timeout time.Duration, match func(Line) bool) (Line, error) {
	deadline := time.After(s.m.slower * timeout)
	for {
		s.mu.Lock()
		lines, grown, ended := s.lines[from:], s.grown, s.ended
		s.mu.Unlock()
		for _, l := range lines {
			if match(l) {
				return l, nil
			}
		}
		from += len(lines)
		if ended != nil {
			return Line{}, fmt.Errorf("wait for %s: ended: %w", s.name, ended)
		}
		select {
		case <-grown:
		case <-deadline:
			return Line{}, fmt.Errorf("wait for %s: no such line in %v", s.name, s.m.slower*timeout)
		}
	}
}

// Text returns the output since a mark, for an error message.
func (s *Stream) Text(from int) string {
	var b strings.Builder
	for _, l := range s.Lines(from) {
		b.WriteString(l.Text + "\n")
	}
	return b.String()
}
