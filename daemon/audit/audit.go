// SPDX-License-Identifier: Apache-2.0

// Package audit records which pod had which device, and when. The package also records how metalplug reset or erased the device
// between two pods, and how it verified the result.
//
// Each entry is a line in the journal, and a line of JSON that is appended to the file audit.jsonl. One goroutine writes the
// file, so that no caller waits for the disk. Entries that cannot be written yet wait in a bounded queue. When the queue is full,
// new entries are dropped. The file and the log report how many entries were dropped.
package audit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/metalplug/metalplug/internal/fsutil"
)

// Event is the kind of event that an entry records.
type Event string

// An entry records one of these events.
const (
	Allocated Event = "allocated" // the kubelet called Allocate for a container
	Held      Event = "held"      // the kubelet reports that a pod holds the device
	Started   Event = "started"   // a container that uses the device starts
	Released  Event = "released"  // the last pod that had the device has ended
	Reset     Event = "reset"
	Erased    Event = "erased"
	Proven    Event = "proven"   // metalplug has read the whole disk, and the disk is blank
	Unproven  Event = "unproven" // metalplug has read the disk, and found data that is not from a pod on this node
	Adopted   Event = "adopted"  // the operator allowed metalplug to erase the disk with all its data
	Stepped   Event = "unit"     // a vendor unit has run
	Refused   Event = "refused"  // metalplug did not allow a container that uses the device to start
	Failed    Event = "failed"   // a reset, an erasure or a vendor unit failed
)

// message returns the log message for an event. message returns "" for refusals and failures, because the code that refuses or
// fails already logs them.
func (e Event) message() string {
	return map[Event]string{
		Allocated: "device allocated",
		Held:      "device held",
		Started:   "device started",
		Released:  "device released",
		Reset:     "device reset",
		Erased:    "device erased",
		Proven:    "disk proven blank",
		Unproven:  "disk holds data",
		Adopted:   "disk adopted",
		Stepped:   "device unit run",
	}[e]
}

// Entry is one line of the audit file. A field is empty if it is unknown or does not apply to the event.
type Entry struct {
	Time      time.Time         `json:"time"`
	Event     Event             `json:"event"`
	Resource  string            `json:"resource,omitempty"`
	Device    string            `json:"device,omitempty"`
	Identity  map[string]string `json:"identity,omitempty"` // attributes of the hardware, such as the serial number and the wwid
	Namespace string            `json:"namespace,omitempty"`
	Pod       string            `json:"pod,omitempty"`
	Container string            `json:"container,omitempty"`
	Pods      []string          `json:"podUIDs,omitempty"`
	Method    string            `json:"method,omitempty"`   // reset or erase method, or the name of a vendor unit
	Result    string            `json:"result,omitempty"`   // "ok" or the error
	Verified  string            `json:"verified,omitempty"` // how metalplug verified the result, or what it found
	Seconds   float64           `json:"seconds,omitempty"`  // duration of the work
	Lost      int               `json:"lost,omitempty"`     // number of entries that were dropped before this one
}

// queueSize is the maximum number of entries in the queue. A writer that holds this many entries takes no more from the queue.
// Each entry is a few hundred bytes long.
const queueSize = 4096

// Log writes the audit file. A Log's methods are safe for concurrent use, and do nothing if the Log is nil.
type Log struct {
	log  *slog.Logger
	file file

	queue   chan Entry   // entries for the file
	dropped atomic.Int64 // number of entries that were dropped since the last entry in the file
	closing chan struct{}
	closed  chan struct{} // closed when the writer has ended
}

// Open returns a Log that writes the audit file in a directory. The Log reports errors to the logger, which must not block.
func Open(dir string, log *slog.Logger) *Log {
	l := &Log{
		log: log, file: file{name: filepath.Join(dir, "audit.jsonl"), size: fileSize},
		queue: make(chan Entry, queueSize), closing: make(chan struct{}), closed: make(chan struct{}),
	}
	go l.writeAll()
	return l
}

// Close writes the remaining entries to the file, and logs how many of them could not be written. Later entries appear only in
// the journal.
func (l *Log) Close() {
	if l == nil {
		return
	}
	close(l.closing)
	<-l.closed
}

// Note logs entries and queues them for the file. Note does not block.
func (l *Log) Note(entries ...Entry) {
	if l == nil {
		return
	}
	for _, e := range entries {
		e.Time = time.Now().UTC()
		select {
		case l.queue <- e:
		default:
			l.dropped.Add(1)
		}
		l.report(e)
	}
}

// report writes an entry to the daemon's log, but not to the audit file.
func (l *Log) report(e Entry) {
	message := e.Event.message()
	if message == "" {
		return
	}
	pod := strings.Join(e.Pods, " ")
	if e.Pod != "" {
		pod = e.Namespace + "/" + e.Pod + "/" + e.Container
	}
	// If there is no serial number, another attribute allows an operator to recognise the device.
	serial := cmp.Or(e.Identity["device/serial"], e.Identity["serial"], e.Identity["wwid"], e.Identity["device/wwid"])
	var took any = ""
	if e.Seconds > 0 {
		took = time.Duration(e.Seconds * float64(time.Second))
	}
	l.log.Info(message, "device", e.Device, "resource", e.Resource, "serial", serial, "pod", pod,
		"action", e.Method, "detail", e.Verified, "duration", took)
}

const (
	// fileSize is the maximum size of the file in bytes, which is enough for about forty thousand entries. When the file reaches
	// this size, it is renamed to audit.jsonl.1.
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

// write appends entries to the file. The first entry also records how many entries were dropped before it.
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
// was already written.
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
	if last[0] != '\n' { // a crash has cut off the last line's end
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
