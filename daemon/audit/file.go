// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/metalplug/metalplug/internal/fsutil"
)

const (
	// fileSize is the maximum size of the file in bytes, which is enough for about forty thousand entries. When the audit file
	// has reached this size, the file is renamed to audit.jsonl.1.
	fileSize = 16 << 20
	// retryInterval is the time between two attempts to write to the file after a failure.
	retryInterval = 10 * time.Second
)

// writeAll writes entries from the queue to the file until the log is closed. While the file cannot be written, writeAll collects
// up to queueSize entries, and tries again after each retryInterval.
func (l *Log) writeAll() {
	defer close(l.closed)
	var entries []Entry // entries to write
	complaint := ""
	for closing := false; !closing || complaint == "" && len(l.queue) > 0; {
		queue, retry := l.queue, (<-chan time.Time)(nil)
		if complaint != "" {
			queue, retry = nil, time.After(retryInterval)
		}
		select {
		case <-l.closing:
			closing = true
		case <-retry:
		case e := <-queue:
			entries = append(entries, e)
		}
		for len(entries) < queueSize && len(l.queue) > 0 { // take all waiting entries, so that one sync is enough for them
			entries = append(entries, <-l.queue)
		}
		err := l.write(entries)
		switch {
		case err == nil:
			entries = nil
			if complaint != "" {
				complaint = ""
				l.log.Info("audit file writable again")
			}
		case err.Error() != complaint:
			complaint = err.Error()
			l.log.Error("audit file not writable", "err", err)
		}
	}
	l.logLost(len(entries) + len(l.queue) + int(l.dropped.Load()))
}

// logLost logs that n entries are missing from the file.
func (l *Log) logLost(n int) {
	if n > 0 {
		l.log.Error("audit entries lost", "err", fmt.Errorf("%d entries are missing from %s, but are in the journal", n, l.file.name))
	}
}

// write appends entries to the file. The first of them also records how many entries were dropped before it.
func (l *Log) write(entries []Entry) error {
	if len(entries) == 0 {
		return nil
	}
	dropped := l.dropped.Load()
	entries[0].Lost = int(dropped)
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	encoder.SetEscapeHTML(false)
	for _, e := range entries {
		_ = encoder.Encode(e) // this cannot fail, because JSON can represent all values in an entry
	}
	if err := l.file.append(lines.Bytes()); err != nil {
		return err
	}
	l.dropped.Add(-dropped)
	l.logLost(int(dropped))
	return nil
}

// file is the audit file. The methods of file must not be called concurrently.
type file struct {
	name string
	size int64 // maximum size
}

// append adds whole lines to the file. If the result is nil, the lines are on disk. After an error, append removes the part that
// is already written.
func (f file) append(lines []byte) error {
	open, err := os.OpenFile(f.name, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer open.Close()
	info, err := open.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if size > 0 && size+int64(len(lines)) > f.size {
		if err := os.Rename(f.name, f.name+".1"); err != nil {
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
	if last[0] != '\n' { // a crash has cut off the end of the last line
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
