// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
)

const (
	// queueSize bounds the lines that wait for a reader, in bytes.
	queueSize = 1 << 20
	// errorSize bounds them where the next line is an error: lines of less importance leave room for errors.
	errorSize = 4 << 20
	// logCloseLimit bounds how long Close waits for a reader.
	logCloseLimit = 5 * time.Second
	// journalPath is journald's socket for its native protocol (systemd-journald.service(8)).
	journalPath = "/run/systemd/journal/socket"
)

// Log is a logger whose callers never wait for its reader. Lines wait in a bounded queue; a goroutine writes them. Lines that
// find the queue full or that cannot be written are dropped and counted. A warning reports the count once the queue is empty and
// the last write succeeded.
type Log struct {
	*slog.Logger

	plain slog.Handler // writes into the line
	w     io.Writer

	mu      sync.Mutex
	line    bytes.Buffer // the line that plain writes
	lines   [][]byte
	size    int // of lines, in bytes
	dropped int
	failing bool // the last write failed
	closed  bool

	wake    chan struct{} // one slot
	written chan struct{} // closed by the writer
}

// OpenLog returns a log that writes to the journal if standard error is connected to it, else text without time to w.
func OpenLog(w io.Writer, level slog.Level) *Log {
	if ok, err := journal.StderrIsJournalStream(); ok && err == nil {
		return openJournal(journalPath, os.Stderr, level)
	}
	return openLog(w, func(line io.Writer) slog.Handler { return textHandler(line, level) })
}

func openJournal(path string, text io.Writer, level slog.Level) *Log {
	return openLog(&journalSocket{path: path, text: text}, func(line io.Writer) slog.Handler {
		return &journalHandler{level: level, w: line}
	})
}

func openLog(w io.Writer, plain func(line io.Writer) slog.Handler) *Log {
	l := &Log{w: w, wake: make(chan struct{}, 1), written: make(chan struct{})}
	l.plain = plain(&l.line)
	l.Logger = slog.New(queued{Handler: l.plain, log: l})
	go l.write()
	return l
}

// Close waits until all lines are written, or until the reader has taken too long. Later lines are dropped.
func (l *Log) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.wakeUp()
	select {
	case <-l.written:
	case <-time.After(logCloseLimit):
	}
}

func (l *Log) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// add puts the line of a record into the queue.
func (l *Log) add(h slog.Handler, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := queueSize
	if r.Level >= slog.LevelError {
		most = errorSize
	}
	if l.closed || l.size >= most {
		l.dropped++
		return nil
	}
	return l.format(h, r)
}

// format appends the line that a handler makes of a record. l.mu is held.
func (l *Log) format(h slog.Handler, r slog.Record) error {
	l.line.Reset()
	if err := h.Handle(context.Background(), r); err != nil {
		return err
	}
	l.lines = append(l.lines, bytes.Clone(l.line.Bytes()))
	l.size += l.line.Len()
	l.wakeUp()
	return nil
}

// take returns the first line in the queue, and how many lines are lost with it. That is the count of dropped lines where the
// queue is empty; nil: there is none.
func (l *Log) take() (line []byte, worth int, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	worth = 1
	if len(l.lines) == 0 && l.dropped > 0 && !l.failing {
		r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines dropped", 0)
		r.Add("detail", fmt.Sprintf("%d lines: the reader of the log was too slow, or away", l.dropped))
		worth, l.dropped = l.dropped, 0
		_ = l.format(l.plain, r) // it writes to memory
	}
	if len(l.lines) == 0 {
		l.lines = nil // and with it the memory of a long queue
		return nil, 0, l.closed
	}
	line, l.lines[0], l.lines = l.lines[0], nil, l.lines[1:]
	l.size -= len(line)
	return line, worth, false
}

// wrote counts a line that was not written.
func (l *Log) wrote(worth int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failing = err != nil; l.failing {
		l.dropped += worth
	}
}

// write writes lines until the log is closed and its queue is empty.
func (l *Log) write() {
	defer close(l.written)
	for {
		line, worth, closed := l.take()
		switch {
		case closed:
			if c, ok := l.w.(*journalSocket); ok {
				c.close()
			}
			return
		case line == nil:
			<-l.wake
		default:
			_, err := l.w.Write(line) // a log without a reader stops nothing
			l.wrote(worth, err)
		}
	}
}

// queued is a handler of a log whose lines go into the queue.
type queued struct {
	slog.Handler
	log *Log
}

// Handle queues a line. It does not block.
func (q queued) Handle(_ context.Context, r slog.Record) error { return q.log.add(q.Handler, r) }

// WithAttrs returns a handler whose lines have these particulars too.
func (q queued) WithAttrs(attrs []slog.Attr) slog.Handler {
	return queued{Handler: q.Handler.WithAttrs(attrs), log: q.log}
}

// WithGroup returns a handler whose particulars have that group.
func (q queued) WithGroup(name string) slog.Handler {
	return queued{Handler: q.Handler.WithGroup(name), log: q.log}
}

// journalSocket sends each write as one datagram. The socket is connected: only then does the kernel wake a sender that found
// the queue of the receiver full with the datagrams of others (net/unix/af_unix.c, unix_dgram_peer_wake_me).
type journalSocket struct {
	path string
	conn net.Conn  // nil: not connected
	text io.Writer // standard error: its stream outlives a new socket, which a sandbox that binds the old file does not show
}

// Write sends a datagram, to the new socket if journald has made one. If there is no socket, it writes the message as text.
func (j *journalSocket) Write(datagram []byte) (n int, err error) {
	for range 2 {
		if j.conn == nil {
			if j.conn, err = net.Dial("unixgram", j.path); err != nil {
				j.conn = nil
				break
			}
		}
		if n, err = j.conn.Write(datagram); err == nil {
			return n, nil
		}
		j.close()
	}
	return j.text.Write(textOf(datagram))
}

func (j *journalSocket) close() {
	if j.conn != nil {
		j.conn.Close()
		j.conn = nil
	}
}
