//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/integration/vm/wire"
)

// commandTimeout is the maximum duration of a command in the machine, which is slow because it is emulated.
const commandTimeout = 5 * time.Minute

// Result is the result of a command in the machine.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// guest is the test's side of the connection to the agent.
type guest struct {
	conn net.Conn
	send sync.Mutex // locked while a frame is sent

	mu      sync.Mutex
	last    uint64                   // protected by mu
	pending map[uint64]func(message) // functions that receive the answers; protected by mu
	err     error                    // reason why the connection has ended, or nil; protected by mu
}

type message struct {
	wire.Frame
	body []byte
	err  error // reason why the connection was closed
}

func newGuest(conn net.Conn) *guest {
	g := &guest{conn: conn, pending: make(map[uint64]func(message))}
	go g.receive()
	return g
}

func (g *guest) receive() {
	defer g.conn.Close()
	r := bufio.NewReaderSize(g.conn, 1<<20)
	for {
		f, body, err := wire.Read(r)
		if err != nil {
			g.fail(err)
			return
		}
		g.mu.Lock()
		deliver := g.pending[f.ID]
		if f.Op == wire.Done {
			delete(g.pending, f.ID)
		}
		g.mu.Unlock()
		if deliver != nil {
			deliver(message{Frame: f, body: body})
		}
	}
}

func (g *guest) fail(err error) {
	g.mu.Lock()
	g.err = err
	g.mu.Unlock()
	g.forget(err)
}

// forget ends all unanswered requests.
func (g *guest) forget(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, deliver := range g.pending {
		deliver(message{err: err})
	}
	clear(g.pending)
}

// request sends a frame. It calls deliver for each answer, in order, from one goroutine. deliver must not block.
func (g *guest) request(f wire.Frame, body []byte, deliver func(message)) (uint64, error) {
	g.mu.Lock()
	if g.err != nil {
		defer g.mu.Unlock()
		return 0, g.err
	}
	g.last++
	f.ID = g.last
	g.pending[f.ID] = deliver
	g.mu.Unlock()
	return f.ID, g.write(f, body)
}

func (g *guest) write(f wire.Frame, body []byte) error {
	g.send.Lock()
	defer g.send.Unlock()
	return wire.Write(g.conn, f, body)
}

// call sends a request that has a single answer, and waits for the answer.
func (g *guest) call(f wire.Frame, body []byte, timeout time.Duration) (message, error) {
	answers := make(chan message, 1)
	if _, err := g.request(f, body, func(m message) { answers <- m }); err != nil {
		return message{}, err
	}
	select {
	case m := <-answers:
		if m.err == nil && m.Err != "" {
			m.err = errors.New(m.Err)
		}
		return m, m.err
	case <-time.After(timeout):
		return message{}, fmt.Errorf("no answer from the machine for %v", timeout)
	}
}

func (g *guest) run(stdin []byte, timeout time.Duration, argv ...string) (Result, error) {
	f := wire.Frame{Op: wire.Run, Argv: argv, TimeoutMS: timeout.Milliseconds()}
	m, err := g.call(f, stdin, timeout+time.Second)
	if err != nil {
		return Result{}, fmt.Errorf("run %s: %w", strings.Join(argv, " "), err)
	}
	return Result{Code: m.Code, Stdout: string(m.body[:m.Stdout]), Stderr: string(m.body[m.Stdout:])}, nil
}

// Try runs a command in the machine and returns its output and exit code, even after a failure. The test fails only if the
// command cannot run.
func (m *Machine) Try(argv ...string) Result {
	m.t.Helper()
	return m.try(commandTimeout, argv...)
}

func (m *Machine) try(timeout time.Duration, argv ...string) Result {
	m.t.Helper()
	r, err := m.guest.run(nil, m.slower*timeout, argv...)
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

// Run runs a command that must succeed and returns its standard output without the final newline.
func (m *Machine) Run(argv ...string) string {
	m.t.Helper()
	return m.RunFor(commandTimeout, argv...)
}

// RunFor is like Run, for a command that may take longer.
func (m *Machine) RunFor(timeout time.Duration, argv ...string) string {
	m.t.Helper()
	r := m.try(timeout, argv...)
	if r.Code != 0 {
		m.t.Fatalf("run %s: exit code %d\n%s%s", strings.Join(argv, " "), r.Code, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(r.Stdout)
}

// Sh runs a shell script in which every command must succeed.
func (m *Machine) Sh(script string) string {
	m.t.Helper()
	return m.Run("sh", "-euc", script)
}

// Push copies a file of this host, with its permissions, to a path in the
// machine.
func (m *Machine) Push(file, path string) {
	m.t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		m.t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil {
		m.t.Fatal(err)
	}
	m.push(path, content, info.Mode().Perm())
}

// Write creates a file in the machine.
func (m *Machine) Write(path, content string) {
	m.t.Helper()
	m.push(path, []byte(content), 0o644)
}

func (m *Machine) push(path string, content []byte, mode os.FileMode) {
	m.t.Helper()
	f := wire.Frame{Op: wire.Push, Path: path, Mode: uint32(mode)}
	if _, err := m.guest.call(f, content, commandTimeout); err != nil {
		m.t.Fatalf("push %s: %v", path, err)
	}
}

// Pull returns the content of a file in the machine.
func (m *Machine) Pull(path string) string {
	m.t.Helper()
	answer, err := m.guest.call(wire.Frame{Op: wire.Pull, Path: path}, nil, commandTimeout)
	if err != nil {
		m.t.Fatalf("pull %s: %v", path, err)
	}
	return string(answer.body)
}

// Eventually polls until the condition is true, and fails the test after the timeout. A test that can wait for an event
// should use Stream.Await instead.
func (m *Machine) Eventually(what string, timeout time.Duration, condition func() bool) {
	m.t.Helper()
	deadline := time.Now().Add(m.slower * timeout)
	for !condition() {
		if time.Now().After(deadline) {
			m.t.Fatalf("wait for %s: not in %v", what, m.slower*timeout)
		}
		time.Sleep(100 * time.Millisecond) // each check starts a process in the machine
	}
}
