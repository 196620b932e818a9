// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/journal"

	"github.com/metalplug/metalplug/internal/liveness"
)

const (
	// queueSize bounds the lines that wait for a reader, in bytes.
	queueSize = 1 << 20
	// errorSize bounds them where the next line is an error. Lines of less importance leave room for errors.
	errorSize = 4 << 20
	// logCloseLimit bounds how long Close waits for a reader.
	logCloseLimit = 5 * time.Second
	// journalPath is journald's socket for its native protocol (systemd-journald.service(8)).
	journalPath = "/run/systemd/journal/socket"
)

// Log is a logger whose callers never wait for its reader. Lines wait in a bounded queue, and a goroutine writes them.
// Lines that find the queue full or that cannot be written are dropped and counted. A warning reports the count once the
// queue is empty and the last write succeeded.
type Log struct {
	*slog.Logger

	w       io.Writer
	mu      sync.Mutex
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

// openLog returns a log of a handler that writes each line by one Write (slog.TextHandler.Handle does).
func openLog(w io.Writer, handler func(line io.Writer) slog.Handler) *Log {
	l := &Log{w: w, wake: make(chan struct{}, 1), written: make(chan struct{})}
	l.Logger = slog.New(handler(queue{l}))
	go l.write()
	return l
}

// Close waits until all lines are written, or until the reader has taken too long. Later lines are dropped.
func (l *Log) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	liveness.Poke(l.wake)
	select {
	case <-l.written:
	case <-time.After(logCloseLimit):
	}
}

// queue puts lines into the queue of a log.
type queue struct{ *Log }

// Write queues a line. It does not block.
func (q queue) Write(line []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	most := queueSize
	if bytes.HasPrefix(line, []byte("PRIORITY=3\n")) || bytes.HasPrefix(line, []byte("level=ERROR ")) {
		most = errorSize
	}
	if q.closed || q.size >= most {
		q.dropped++
		return len(line), nil
	}
	q.lines, q.size = append(q.lines, bytes.Clone(line)), q.size+len(line)
	liveness.Poke(q.wake)
	return len(line), nil
}

// take returns the first line in the queue, and otherwise how many lines were dropped that are to be reported now.
func (l *Log) take() (line []byte, dropped int, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case len(l.lines) > 0:
		line, l.lines[0], l.lines = l.lines[0], nil, l.lines[1:]
		l.size -= len(line)
	case l.dropped > 0 && !l.failing && !l.closed:
		dropped, l.dropped = l.dropped, 0
	default:
		l.lines = nil // and with it the memory of a long queue
	}
	return line, dropped, l.closed
}

// write writes lines until the log is closed and its queue is empty.
func (l *Log) write() {
	defer close(l.written)
	for {
		line, dropped, closed := l.take()
		switch {
		case line != nil:
			_, err := l.w.Write(line) // a log without a reader stops nothing
			l.mu.Lock()
			if l.failing = err != nil; l.failing {
				l.dropped++
			}
			l.mu.Unlock()
		case dropped > 0:
			l.Warn("log lines dropped", "detail", fmt.Sprintf("%d lines: the reader of the log was too slow, or away", dropped))
		case closed:
			return
		default:
			<-l.wake
		}
	}
}

// journalSocket sends each write as one datagram. The socket is connected. Only then does the kernel wake a sender that
// found the queue of the receiver full with the datagrams of others (net/unix/af_unix.c, unix_dgram_peer_wake_me).
type journalSocket struct {
	path string
	conn net.Conn  // nil while not connected
	text io.Writer // standard error. Its stream outlives a new socket, which a sandbox that binds the old file does not show
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
		j.conn.Close()
		j.conn = nil
	}
	return j.text.Write(textOf(datagram))
}
