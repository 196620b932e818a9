// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/internal/fsutil"
)

const (
	// fileSize is how large the file grows before a new one is begun, in bytes: some ten thousand entries.
	fileSize = 8 << 20
	// filesOld is how many old ones are kept: audit.jsonl.1 is the last, audit.jsonl.4 the oldest.
	filesOld = 4
	// minBackoff and maxBackoff bound the time between attempts to write what could not be written.
	minBackoff = time.Second
	maxBackoff = time.Minute
)

// writeAll writes the queue until the audit is closed. What cannot be written is tried again, less and less often.
func (l *Log) writeAll() {
	defer close(l.closed)
	backoff, complaint := minBackoff, ""
	var retry <-chan time.Time
	for closing := false; !closing; {
		wake := l.wake
		if retry != nil {
			wake = nil // what is new waits, too
		}
		select {
		case <-l.closing:
			closing = true
		case <-retry:
			backoff = min(2*backoff, maxBackoff)
		case <-wake:
		}
		err := l.write()
		switch {
		case err == nil && complaint != "":
			l.log.Info("audit kept again")
			fallthrough
		case err == nil:
			backoff, complaint, retry = minBackoff, "", nil
			continue
		case err.Error() != complaint:
			complaint = err.Error()
			l.log.Error("audit not kept", "err", err)
		}
		retry = time.After(backoff)
	}
	if n := len(l.queue) + l.dropped; n > 0 {
		l.log.Error("audit entries lost", "err", fmt.Errorf("%d are not in %s: the journal has them", n, l.file.name))
	}
}

// write appends the queue to the file, with one sync.
func (l *Log) write() error {
	l.mu.Lock()
	entries, dropped := l.queue, l.dropped
	l.queue, l.dropped = nil, 0
	l.mu.Unlock()
	if len(entries) == 0 {
		return nil
	}
	entries[0].Lost = dropped
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	encoder.SetEscapeHTML(false)
	for _, e := range entries {
		if err := encoder.Encode(e); err != nil {
			return err // an entry has nothing that JSON cannot say
		}
	}
	err := l.file.append(lines.Bytes())
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		entries[0].Lost = 0
		l.queue, l.dropped = append(entries, l.queue...), l.dropped+dropped
		l.bound()
	case dropped > 0:
		l.log.Error("audit entries lost", "err", fmt.Errorf("%d are not in %s: the journal has them", dropped, l.file.name))
	}
	return err
}

// file is the audit's file. It is for one goroutine.
type file struct {
	name string
	size int64 // at most
}

// append appends whole lines and has them on disk when it returns nil. It cuts off what it has written in vain.
func (f file) append(lines []byte) error {
	// Without O_NONBLOCK a pipe would wait for its reader.
	open, err := os.OpenFile(f.name, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer open.Close()
	info, err := open.Stat()
	size := int64(0)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("open %s: it is not a regular file: move it away", f.name)
	default:
		size = info.Size()
	}
	if size > 0 && size+int64(len(lines)) > f.size {
		if err := f.rotate(); err != nil {
			return err
		}
		return f.append(lines)
	}
	last := []byte{'\n'}
	if size > 0 {
		if _, err := open.ReadAt(last, size-1); err != nil {
			return err
		}
	}
	if last[0] != '\n' { // a crash has torn a line
		lines = append([]byte{'\n'}, lines...)
	}
	if _, err = open.Write(lines); err == nil {
		err = open.Sync()
	}
	if err != nil {
		return errors.Join(err, open.Truncate(size))
	}
	if size == 0 {
		return fsutil.SyncDir(filepath.Dir(f.name))
	}
	return nil
}

// rotate puts the file aside.
func (f file) rotate() error {
	for n := filesOld; n > 0; n-- {
		from := f.name
		if n > 1 {
			from = fmt.Sprintf("%s.%d", f.name, n-1)
		}
		if err := os.Rename(from, fmt.Sprintf("%s.%d", f.name, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
