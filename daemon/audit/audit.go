// SPDX-License-Identifier: Apache-2.0

// Package audit writes down who had which device when, what was done to it in between, and how that was verified.
//
// Each entry is a line in the journal and a line of JSON in the file audit.jsonl, which is only appended to. Whoever notes
// something does not wait for the disk; the log must not block. What cannot be written
// is kept until it can: where there is too much of it, the oldest entries are given up, those about erasures last of all, and
// that is written down as well.
package audit

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Event is what has happened to a device.
type Event string

// Events.
const (
	Allocated Event = "allocated" // given to a container by the kubelet
	Held      Event = "held"      // by a pod, as the kubelet says by name
	Started   Event = "started"   // a container starts with it
	Released  Event = "released"  // its last pod is gone
	Reset     Event = "reset"
	Erased    Event = "erased"
	Proven    Event = "proven"   // a disk was read in full and is blank
	Unproven  Event = "unproven" // a disk was read and holds data that no pod of this node has left there
	Adopted   Event = "adopted"  // the operator lets a disk be erased, whatever is on it
	Stepped   Event = "unit"     // a vendor's step was carried out
	Refused   Event = "refused"  // a container was not started with it
	Failed    Event = "failed"   // it could not be reset, erased, or a vendor's step has failed
)

// message is what is logged of an event; empty: whoever has refused it, or failed, says so.
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

// Entry is one line of the audit. What is not known, or makes no sense for an event, is empty.
type Entry struct {
	Time      time.Time         `json:"time"`
	Event     Event             `json:"event"`
	Resource  string            `json:"resource,omitempty"`
	Device    string            `json:"device,omitempty"`
	Identity  map[string]string `json:"identity,omitempty"` // attributes of the hardware: serial number, wwid
	Namespace string            `json:"namespace,omitempty"`
	Pod       string            `json:"pod,omitempty"`
	Container string            `json:"container,omitempty"`
	Pods      []string          `json:"podUIDs,omitempty"`
	Method    string            `json:"method,omitempty"`   // of a reset or an erasure, or the name of a unit
	Result    string            `json:"result,omitempty"`   // "ok" or what went wrong
	Verified  string            `json:"verified,omitempty"` // what was done, and how it was verified
	Seconds   float64           `json:"seconds,omitempty"`  // that it took
	Lost      int               `json:"lost,omitempty"`     // entries before this one that were given up
}

// precious tells whether an entry is given up last of all.
func (e Entry) precious() bool { return e.Event == Erased || e.Event == Failed }

// keptMost is how many entries wait at most for a disk that cannot be written: some hundred bytes each. Of the precious
// ones there may be as many again.
const keptMost = 4096

// Log is an audit that is being written. Its methods are safe for concurrent use; those of nil do nothing.
type Log struct {
	// Owned, if not nil, returns why nothing may be written into the directory, which is another's. It is set before use.
	Owned func() error

	log  *slog.Logger
	file *file

	mu       sync.Mutex
	queue    []Entry // for the file
	lost     int
	unlogged []Entry // since the last Flush
	over     bool    // closed: there is no writer any more

	wake    chan struct{} // one slot
	closed  chan struct{}
	written chan struct{} // closed by the writer
}

// Open begins to write the audit in a directory, which is made if it is missing. That it cannot be written is logged. The log
// must not block.
func Open(dir string, log *slog.Logger) *Log {
	l := &Log{
		log: log, file: newFile(dir),
		wake: make(chan struct{}, 1), closed: make(chan struct{}), written: make(chan struct{}),
	}
	go l.writeAll()
	return l
}

// Close writes and logs what is still to be; what cannot be written is logged.
func (l *Log) Close() {
	if l == nil {
		return
	}
	close(l.closed)
	<-l.written
	l.Flush()
}

// Note notes what has happened just now. It does not wait. After Close it is only logged.
func (l *Log) Note(entries ...Entry) {
	if l == nil {
		return
	}
	l.Keep(entries...)
	l.Flush()
}

// Keep is Note for somebody who is waited for: what is kept is written and logged by the next Flush or Note. After Close it is
// only logged.
func (l *Log) Keep(entries ...Entry) {
	if l == nil {
		return
	}
	now := time.Now().UTC()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range entries {
		e.Time = now
		l.unlogged = append(l.unlogged, e)
		if !l.over {
			l.queue = append(l.queue, e)
			l.makeRoom()
		}
	}
}

// Flush logs what is kept, and has it written. It does not wait for the file.
func (l *Log) Flush() {
	if l == nil {
		return
	}
	l.mu.Lock()
	entries := l.unlogged
	l.unlogged = nil
	l.mu.Unlock()
	for _, e := range entries {
		l.say(e)
	}
	select {
	case l.wake <- struct{}{}:
	default:
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

// makeRoom gives up entries if there are too many.
func (l *Log) makeRoom() {
	if len(l.queue) <= keptMost {
		return
	}
	for i, e := range l.queue {
		if !e.precious() || len(l.queue) > 2*keptMost {
			l.giveUp(e)
			l.queue = append(l.queue[:i], l.queue[i+1:]...)
			return
		}
	}
}

// giveUp lets an entry be lost, which is logged if it matters. l.mu is held.
func (l *Log) giveUp(e Entry) {
	l.lost++
	if e.precious() || l.lost == 1 {
		text, _ := json.Marshal(e)
		l.log.Error("audit entry lost", "device", e.Device, "resource", e.Resource, "detail", string(text),
			"err", fmt.Errorf("%s cannot be written", l.file.name))
	}
}
