// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
)

const (
	// queueLines is the maximum number of queued lines. Most lines are about 200 bytes long. [fieldSize] limits each field in a
	// line.
	queueLines = 4096
	// errorLines is how many of the queue's lines are reserved for errors.
	errorLines = queueLines / 4
	// logCloseLimit is the maximum time that Close waits for the queued lines to be written.
	logCloseLimit = 5 * time.Second
	// journalPath is journald's socket for its native protocol (systemd-journald.service(8)).
	journalPath = "/run/systemd/journal/socket"
)

// Log is a logger that does not block, even if nothing reads the log. Lines wait in a bounded queue, and a goroutine writes them.
// Log drops and counts each line that does not fit into the queue or cannot be written. After the next successful write, once the
// queue is empty, Log writes a warning with the number of dropped lines.
type Log struct {
	*slog.Logger

	w       io.Writer
	lines   chan []byte
	dropped atomic.Int64  // dropped lines since the last warning
	closing chan struct{} // closed by Close
	written chan struct{} // closed by the writer
}

// OpenLog returns a log that writes to the journal if standard error is connected to the journal, and writes text without
// timestamps to w if not.
func OpenLog(w io.Writer, level slog.Level) *Log {
	if ok, err := journal.StderrIsJournalStream(); ok && err == nil {
		return openJournal(journalPath, os.Stderr, level)
	}
	return openLog(w, func(line io.Writer) slog.Handler {
		return slog.NewTextHandler(line, &slog.HandlerOptions{Level: level, ReplaceAttr: formatAttr})
	})
}

func openJournal(path string, text io.Writer, level slog.Level) *Log {
	return openLog(&journalSocket{path: path, text: text}, func(line io.Writer) slog.Handler {
		return &journalHandler{level: level, w: line}
	})
}

// openLog returns a log that formats lines with a handler. The handler must write each line with one Write, as
// slog.TextHandler.Handle does.
func openLog(w io.Writer, handler func(line io.Writer) slog.Handler) *Log {
	l := &Log{w: w, lines: make(chan []byte, queueLines), closing: make(chan struct{}), written: make(chan struct{})}
	l.Logger = slog.New(handler(queue{l}))
	go l.write()
	return l
}

// Close waits until all lines are written, or until logCloseLimit has passed. Lines that are logged later are lost. Close
// may be called only once.
func (l *Log) Close() {
	close(l.closing)
	select {
	case <-l.written:
	case <-time.After(logCloseLimit):
	}
}

// queue is a writer that appends lines to a log's queue.
type queue struct{ *Log }

// Write queues a line. Write does not block.
func (q queue) Write(line []byte) (int, error) {
	isError := bytes.HasPrefix(line, []byte("PRIORITY=3\n")) || bytes.HasPrefix(line, []byte("level=ERROR "))
	if !isError && len(q.lines) >= queueLines-errorLines {
		q.dropped.Add(1)
		return len(line), nil
	}
	select {
	case q.lines <- bytes.Clone(line):
	default:
		q.dropped.Add(1)
	}
	return len(line), nil
}

// write takes lines from the queue and writes them, until the log is closed and the queue is empty.
func (l *Log) write() {
	defer close(l.written)
	for {
		select {
		case line := <-l.lines:
			// The program must continue even if nothing reads its log.
			if _, err := l.w.Write(line); err != nil {
				l.dropped.Add(1)
				continue
			}
			if len(l.lines) > 0 {
				continue
			}
			if dropped := l.dropped.Swap(0); dropped > 0 {
				l.Warn("log lines dropped", "detail", fmt.Sprintf("%d lines: the reader of the log was too slow or has ended", dropped))
			}
		case <-l.closing:
			if len(l.lines) == 0 {
				return
			}
		}
	}
}

// journalSocket sends each Write as one datagram. The socket must be connected. Otherwise, the kernel does not wake a sender that
// waits for space in the receiver's queue (net/unix/af_unix.c, unix_dgram_peer_wake_me).
type journalSocket struct {
	path string
	conn net.Conn  // nil while not connected
	text io.Writer // standard error, used if journald has created a new socket that the sandbox hides
}

// Write sends a datagram to journald. After an error, Write connects once more, because journald may have created a new socket.
// If this also fails, Write writes the line as text to standard error.
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
