// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"

	"github.com/metalplug/metalplug/integration/devicemanager/host"
	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// ErrDied means that the kubelet's process has ended. After a crash it includes the text of the crash.
var ErrDied = errors.New("kubelet died")

// child is one process of a kubelet, with the pipes to it.
type child struct {
	cmd    *exec.Cmd
	stderr tail
	ready  chan struct{} // closed when the first batch is admitted
	done   chan struct{} // closed when the process has ended and all its output was read

	mu       sync.Mutex // protects all fields below
	in       io.WriteCloser
	last     int                         // ID of the last request
	calls    map[int]chan protocol.Reply // requests without an answer
	rejected map[string]*protocol.Rejection
}

// spawn starts a process and returns when its kubelet.sock accepts connections.
func spawn(ctx context.Context, command []string, o protocol.Options) (*child, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode options: %w", err)
	}
	c := &child{
		cmd:   exec.Command(command[0], command[1:]...),
		ready: make(chan struct{}), done: make(chan struct{}),
		calls: map[int]chan protocol.Reply{}, rejected: map[string]*protocol.Rejection{},
	}
	c.cmd.Env = append(os.Environ(), host.Env+"="+string(text))
	c.cmd.Stderr = &c.stderr
	out, err := c.start()
	if err != nil {
		return nil, fmt.Errorf("start kubelet: %w", err)
	}
	listening := make(chan struct{})
	go c.read(out, listening)
	select {
	case <-listening:
		return c, nil
	case <-c.done:
		return nil, fmt.Errorf("start kubelet: %w", c.died())
	case <-ctx.Done():
		c.kill()
		return nil, fmt.Errorf("start kubelet: %w", ctx.Err())
	}
}

func (c *child) start() (io.Reader, error) {
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return out, c.cmd.Start()
}

// read distributes the output of the process until it ends.
func (c *child) read(out io.Reader, listening chan<- struct{}) {
	defer close(c.done)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var r protocol.Reply
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			fmt.Fprintf(&c.stderr, "bad line %q: %v\n", lines.Text(), err)
			continue
		}
		switch r.Event {
		case protocol.EventListening:
			close(listening)
		case protocol.EventReady:
			close(c.ready)
		case "", protocol.EventAdmitted:
			c.deliver(r)
		}
	}
	_ = c.cmd.Wait() // ProcessState shows how it ended
}

func (c *child) deliver(r protocol.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Event == protocol.EventAdmitted {
		if r.Rejected != nil {
			c.rejected[r.UID] = r.Rejected
		}
		return
	}
	if answer, ok := c.calls[r.ID]; ok {
		delete(c.calls, r.ID)
		answer <- r // the channel has room for one reply
	}
}

// call sends a request and waits for its answer.
func (c *child) call(ctx context.Context, r protocol.Request) (protocol.Reply, error) {
	answer, err := c.post(r)
	if err != nil {
		return protocol.Reply{}, err
	}
	select {
	case reply := <-answer:
		return reply, asError(r.Op, reply)
	case <-ctx.Done():
		return protocol.Reply{}, fmt.Errorf("%s: %w", r.Op, ctx.Err())
	case <-c.done:
	}
	select {
	case reply := <-answer: // the process sent the answer before it ended
		return reply, asError(r.Op, reply)
	default:
		return protocol.Reply{}, fmt.Errorf("%s: %w", r.Op, c.died())
	}
}

func asError(op protocol.Op, r protocol.Reply) error {
	switch {
	case r.Rejected != nil:
		return r.Rejected
	case r.Error != "":
		return fmt.Errorf("%s: %s", op, r.Error)
	default:
		return nil
	}
}

func (c *child) post(r protocol.Request) (<-chan protocol.Reply, error) {
	answer, err := c.write(r)
	if err != nil {
		<-c.done // the pipe is broken because the process is ending
		return nil, fmt.Errorf("%s: %w", r.Op, c.died())
	}
	return answer, nil
}

func (c *child) write(r protocol.Request) (<-chan protocol.Reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	r.ID = c.last
	answer := make(chan protocol.Reply, 1)
	c.calls[r.ID] = answer
	return answer, json.NewEncoder(c.in).Encode(r)
}

// died returns an error that describes the end of the process.
func (c *child) died() error {
	return fmt.Errorf("%w: %v\n%s", ErrDied, c.cmd.ProcessState, c.stderr.String())
}

// kill ends the process without a warning, like the kernel, and waits until its sockets are closed.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // the child may have ended already
	<-c.done
}

// tail is a writer that keeps the last 64 KiB. It is safe for concurrent use.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	if extra := t.buf.Len() - 64<<10; extra > 0 {
		t.buf.Next(extra)
	}
	return len(p), nil
}

// String returns the stored text.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
