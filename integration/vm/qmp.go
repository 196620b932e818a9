//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Event is an unsolicited message from QEMU, such as DEVICE_DELETED.
type Event struct {
	Name string          `json:"event"`
	Data json.RawMessage `json:"data"`
}

// QMP is a client of QEMU's machine protocol. It is safe for concurrent use.
type QMP struct {
	conn    net.Conn
	command sync.Mutex // locked from a command to its answer
	answers chan answer

	mu     sync.Mutex
	events []Event       // all events so far, protected by mu
	grown  chan struct{} // closed at the next event, protected by mu
	err    error         // why no more events come, protected by mu
}

type answer struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
}

// dialQMP initialises a new connection to QEMU's control socket.
func dialQMP(conn net.Conn) (*QMP, error) {
	q := &QMP{conn: conn, answers: make(chan answer), grown: make(chan struct{})}
	go q.receive(json.NewDecoder(conn))
	if err := q.Execute("qmp_capabilities", nil, nil); err != nil {
		return nil, err
	}
	return q, nil
}

// receive separates QEMU's messages into answers and events.
func (q *QMP) receive(d *json.Decoder) {
	defer q.conn.Close()
	for {
		var m struct {
			answer
			Event
			Greeting json.RawMessage `json:"QMP"`
		}
		if err := d.Decode(&m); err != nil {
			q.mu.Lock()
			q.err = err
			close(q.grown)
			q.mu.Unlock()
			close(q.answers)
			return
		}
		switch {
		case m.Greeting != nil:
		case m.Name != "":
			q.mu.Lock()
			q.events = append(q.events, m.Event)
			close(q.grown)
			q.grown = make(chan struct{})
			q.mu.Unlock()
		default:
			q.answers <- m.answer
		}
	}
}

// Execute runs a command and decodes the result, unless result is nil.
func (q *QMP) Execute(command string, arguments, result any) error {
	q.command.Lock()
	defer q.command.Unlock()
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(q.conn).Encode(request); err != nil {
		return fmt.Errorf("send %s to QEMU: %w", command, err)
	}
	select {
	case a, ok := <-q.answers:
		if !ok {
			return fmt.Errorf("run %s in QEMU: connection closed", command)
		}
		if a.Error != nil {
			return fmt.Errorf("run %s in QEMU: %s: %s", command, a.Error.Class, a.Error.Desc)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(a.Return, result)
	case <-time.After(30 * time.Second):
		return fmt.Errorf("run %s in QEMU: no answer for 30s", command)
	}
}

// Human runs a command of QEMU's human monitor, for actions that the protocol does not support, and returns its output.
// The output may be an error message.
func (q *QMP) Human(command string) (said string, err error) {
	err = q.Execute("human-monitor-command", map[string]any{"command-line": command}, &said)
	return said, err
}

// mark returns the current position in the events.
func (q *QMP) mark() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.events)
}

// await returns the first event after the mark that matches.
func (q *QMP) await(from int, timeout time.Duration, match func(Event) bool) (Event, error) {
	deadline := time.After(timeout)
	for {
		q.mu.Lock()
		events, grown, err := q.events[from:], q.grown, q.err
		q.mu.Unlock()
		for _, e := range events {
			if match(e) {
				return e, nil
			}
		}
		if err != nil {
			return Event{}, fmt.Errorf("wait for QEMU: %w", err)
		}
		from += len(events)
		select {
		case <-grown:
		case <-deadline:
			return Event{}, errors.New("wait for QEMU: no such event")
		}
	}
}
