// SPDX-License-Identifier: Apache-2.0

// Package audit records which pod had which device, and when. The package also records how metalplug reset or erased the device
// between two pods, and how it verified the result.
//
// Each entry is a line in the journal, and a line of JSON that is appended to the file audit.jsonl. One goroutine writes the
// file, so that no caller waits for the disk. Entries that cannot be written yet wait in a bounded queue. When the queue is full,
// new entries are dropped. The file and the log report how many entries were dropped.
package audit

import (
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
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
	Adopted   Event = "adopted"  // the operator allows metalplug to erase the disk with all its content
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
	Method    string            `json:"method,omitempty"`   // method of a reset or erasure, or the name of a vendor unit
	Result    string            `json:"result,omitempty"`   // "ok" or the error
	Verified  string            `json:"verified,omitempty"` // how metalplug verified the result, or what it found
	Seconds   float64           `json:"seconds,omitempty"`  // duration of the work
	Lost      int               `json:"lost,omitempty"`     // number of entries that were dropped before this one
}

// queueSize is the maximum number of entries in the queue. A writer with this many entries takes no more from the queue. Each
// entry has a few hundred bytes.
const queueSize = 4096

// Log writes the audit file. The methods of a Log are safe for concurrent use. The methods do nothing if the Log is nil.
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
	var took any = ""
	if e.Seconds > 0 {
		took = time.Duration(e.Seconds * float64(time.Second))
	}
	l.log.Info(message, "device", e.Device, "resource", e.Resource, "serial", serial(e.Identity), "pod", pod,
		"action", e.Method, "detail", e.Verified, "duration", took)
}

// serial returns the serial number from an identity. If there is none, serial returns another attribute by which an operator can
// recognise the device.
func serial(identity map[string]string) string {
	for _, name := range []string{"device/serial", "serial", "wwid", "device/wwid"} {
		if value := identity[name]; value != "" {
			return value
		}
	}
	return ""
}
