// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// session is a node with a connection to the test.
type session struct {
	node  *Node
	batch func()     // admits the first batch, once
	mu    sync.Mutex // guards out
	out   *json.Encoder
}

// Serve starts a node and answers requests until in ends. The first batch of pods is admitted in parallel, o.FirstBatch
// after kubelet.sock.
func Serve(o protocol.Options, in io.Reader, out io.Writer) error {
	s := &session{out: json.NewEncoder(out)}
	var err error
	if s.node, err = Start(o); err != nil {
		return err
	}
	s.send(protocol.Reply{Event: protocol.EventListening})
	s.batch = sync.OnceFunc(func() { s.firstBatch(o.Pods) })
	switch {
	case len(o.Pods) == 0:
		go s.batch() // tests accept any order of these two
	case o.FirstBatch >= 0:
		time.AfterFunc(o.FirstBatch, s.batch)
	}
	if o.Watch {
		go s.watch()
	}
	return s.loop(in)
}

// watch sends the capacity each time it changes, until the process ends.
func (s *session) watch() {
	last := map[string]protocol.Counts{}
	for range time.Tick(time.Millisecond) {
		if now := s.node.Capacity(); !maps.Equal(now, last) {
			s.send(protocol.Reply{Event: protocol.EventCapacity, Resources: now})
			last = now
		}
	}
}

func (s *session) firstBatch(pods []protocol.Pod) {
	s.node.FirstBatch(pods, func(uid string, why *protocol.Rejection) {
		s.send(protocol.Reply{Event: protocol.EventAdmitted, UID: uid, Rejected: why})
	})
	s.send(protocol.Reply{Event: protocol.EventReady})
}

func (s *session) loop(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var r protocol.Request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		if r.Op == protocol.OpStop {
			return s.stop(r)
		}
		go s.answer(r)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read requests: %w", err)
	}
	return nil
}

func (s *session) stop(r protocol.Request) error {
	err := s.node.Stop()
	s.send(protocol.Reply{ID: r.ID})
	return err
}

// send writes one line. If a line cannot be written, the reader has ended, and the end of stdin will end this process too.
func (s *session) send(r protocol.Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	r.SinceSock = r.Time.Sub(s.node.Listening())
	_ = s.out.Encode(r)
}

func (s *session) answer(r protocol.Request) {
	reply, err := s.do(r)
	if err != nil {
		reply.Error = err.Error()
	}
	reply.ID = r.ID
	s.send(reply)
}

func (s *session) do(r protocol.Request) (reply protocol.Reply, err error) {
	switch r.Op {
	case protocol.OpCapacity:
		reply.Resources = s.node.Capacity()
	case protocol.OpDevices:
		reply.Devices = s.node.Devices()
	case protocol.OpAdmit:
		if r.Pod == nil {
			return reply, errors.New("admit pod: no pod in the request")
		}
		reply.Rejected = s.node.Admit(*r.Pod)
	case protocol.OpRemove:
		s.node.Remove(r.UID)
	case protocol.OpRun:
		reply.Run, err = s.node.Run(r.UID, r.Container)
	case protocol.OpAssigned:
		reply.Devices = s.node.Assigned(r.UID, r.Container)
	case protocol.OpStatus:
		reply.Devices, err = s.node.Status(r.UID)
	case protocol.OpWait:
		if r.Want == nil {
			return reply, errors.New("wait: no counts in the request")
		}
		reply.Time, err = s.node.Wait(r.Resource, *r.Want, r.Timeout)
	case protocol.OpBatch:
		s.batch()
	case protocol.OpAge:
		err = s.node.Age(r.Resource, r.By)
	default:
		err = fmt.Errorf("answer request: unknown op %q", r.Op)
	}
	return reply, err
}
