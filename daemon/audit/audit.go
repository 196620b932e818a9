// SPDX-License-Identifier: Apache-2.0

// Package audit records which pod had which device when, the work on it in between, and how that was verified.
//
// Each entry is a line in the journal and a line of JSON in the file audit.jsonl, which is only appended to. One
// goroutine writes the file, so that no caller waits for the disk. The log must not block. Entries that cannot be written
// wait in a bounded queue. When it is full, new ones are dropped, and both the file and the log report how many.
package audit

import (
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// Event is what has happened to a device.
type Event string

// Events.
const (
	Allocated Event = "allocated" // given to a container by the kubelet
	Held      Event = "held"      // by a pod, which the kubelet names
	Started   Event = "started"   // a container starts with it
	Released  Event = "released"  // its last pod is gone
	Reset     Event = "reset"
	Erased    Event = "erased"
	Proven    Event = "proven"   // a disk was read in full and is blank
	Unproven  Event = "unproven" // a disk was read and holds data that no pod of this node has left there
	Adopted   Event = "adopted"  // the operator lets a disk be erased, with any content
	Stepped   Event = "unit"     // a vendor's step was carried out
	Refused   Event = "refused"  // a container was not started with it
	Failed    Event = "failed"   // it could not be reset, erased, or a vendor's step has failed
)

// message is the log message of an event, or empty. A refusal or a failure is logged where it happens.
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

// Entry is one line of the audit. Fields that are unknown, or have no meaning for an event, are empty.
type Entry struct {
	Time      time.Time         `json:"time"`
	Event     Event             `json:"event"`
	Resource  string            `json:"resource,omitempty"`
	Device    string            `json:"device,omitempty"`
	Identity  map[string]string `json:"identity,omitempty"` // attributes of the hardware, such as serial number and wwid
	Namespace string            `json:"namespace,omitempty"`
	Pod       string            `json:"pod,omitempty"`
	Container string            `json:"container,omitempty"`
	Pods      []string          `json:"podUIDs,omitempty"`
	Method    string            `json:"method,omitempty"`   // of a reset or an erasure, or the name of a unit
	Result    string            `json:"result,omitempty"`   // "ok" or what went wrong
	Verified  string            `json:"verified,omitempty"` // what was done, and how it was verified
	Seconds   float64           `json:"seconds,omitempty"`  // that it took
	Lost      int               `json:"lost,omitempty"`     // entries before this one that were dropped
}

// queueSize is how many entries wait at most for a disk that cannot be written. Each has some hundred bytes.
const queueSize = 4096

// Log is an audit that is being written. Its methods are safe for concurrent use. Those of nil do nothing.
type Log struct {
	log  *slog.Logger
	file file

	queue   chan Entry   // for the file
	dropped atomic.Int64 // since the last entry in the file
	closing chan struct{}
	closed  chan struct{} // closed by the writer
}

// Open begins to write the audit in a directory. A failure to write is logged. The log must not block.
func Open(dir string, log *slog.Logger) *Log {
	l := &Log{
		log: log, file: file{name: filepath.Join(dir, "audit.jsonl"), size: fileSize},
		queue: make(chan Entry, queueSize), closing: make(chan struct{}), closed: make(chan struct{}),
	}
	go l.writeAll()
	return l
}

// Close writes what is still to be written, and logs how much cannot be. An entry that is noted after it is logged only.
func (l *Log) Close() {
	if l == nil {
		return
	}
	close(l.closing)
	<-l.closed
}

// Note logs entries and has them written. It does not wait.
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
		l.say(e)
	}
}

// say logs an entry.
func (l *Log) say(e Entry) {
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

// serial returns what of an identity people know a device by.
func serial(identity map[string]string) string {
	for _, name := range []string{"device/serial", "serial", "wwid", "device/wwid"} {
		if value := identity[name]; value != "" {
			return value
		}
	}
	return ""
}
