// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/json"
	"time"
)

// writeFirst and writeLast bound the time between attempts to write what could not be written.
const (
	writeFirst = time.Second
	writeLast  = time.Minute
)

// writeAll writes what is noted until the audit is closed. What cannot be written is tried again, less and less often.
func (l *Log) writeAll() {
	defer close(l.written)
	pause, complaint := writeFirst, ""
	var again <-chan time.Time
	for closing := false; !closing; {
		wake := l.wake
		if again != nil {
			wake = nil // what is new waits, too
		}
		select {
		case <-l.closed:
			closing = true
		case <-again:
			pause = min(2*pause, writeLast)
		case <-wake:
		}
		err := l.write()
		switch {
		case err == nil && complaint != "":
			l.log.Info("audit kept again")
			fallthrough
		case err == nil:
			pause, complaint, again = writeFirst, "", nil
			continue
		case err.Error() != complaint:
			complaint = err.Error()
			l.log.Error("audit not kept", "err", err)
		}
		again = time.After(pause)
	}
	l.abandon()
	l.file.close()
}

// write writes all entries that are waiting, with one sync for all of them, to a file that is made again if it was removed.
func (l *Log) write() error {
	if l.Owned != nil {
		if err := l.Owned(); err != nil {
			return err
		}
	}
	told, err := l.file.remake()
	if told != nil {
		l.log.Warn("audit made again", "err", told)
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	entries, lost := l.queue, l.lost
	l.queue, l.lost = nil, 0
	l.mu.Unlock()
	if len(entries) == 0 {
		return nil
	}
	entries[0].Lost = lost
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	encoder.SetEscapeHTML(false)
	for _, e := range entries {
		if err := encoder.Encode(e); err != nil {
			return err // there is nothing in an entry that has no JSON
		}
	}
	if err := l.file.append(lines.Bytes()); err != nil {
		entries[0].Lost = 0
		l.mu.Lock()
		defer l.mu.Unlock()
		l.queue, l.lost = append(entries, l.queue...), l.lost+lost
		for len(l.queue) > keptMost {
			before := len(l.queue)
			if l.makeRoom(); len(l.queue) == before {
				break
			}
		}
		return err
	}
	return nil
}

// abandon logs what can be written no more, since we stop.
func (l *Log) abandon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	for _, e := range l.queue {
		l.giveUp(e)
	}
}
