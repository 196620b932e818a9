//go:build integration

// SPDX-License-Identifier: Apache-2.0

// Command agent runs in the test machine. It executes the test's requests from a virtio serial port and answers them.
// It is statically linked and part of the initrd, so a change of it does not change the disk image.
//
// "agent hold NODE" opens a node exclusively, like a program that claims a disk, prints "open" and stays. A shell
// cannot do that.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/metalplug/metalplug/integration/vm/wire"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "hold" {
		log.Fatal(hold(os.Args[2]))
	}
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: agent PORT | hold NODE")
		os.Exit(2)
	}
	port, err := openPort(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	a := &agent{port: port, epoch: monotonicEpoch(), running: make(map[uint64]*running)}
	log.Fatal(a.serve(bufio.NewReaderSize(waitingReader{port}, 1<<20)))
}

// hold keeps a node open exclusively until it gets a signal. It opens the node read-only, because udevd inspects a disk
// again when a writer closes it.
func hold(node string) error {
	f, err := os.OpenFile(node, os.O_RDONLY|syscall.O_EXCL, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Println("open")
	for {
		time.Sleep(time.Hour)
	}
}

// openPort waits until udev has created the link to the port.
func openPort(path string) (*os.File, error) {
	for {
		port, err := os.OpenFile(path, os.O_RDWR, 0)
		if !errors.Is(err, os.ErrNotExist) {
			return port, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// waitingReader reads a virtio port, which reports end of file while no process has the other end open.
type waitingReader struct{ port *os.File }

func (r waitingReader) Read(p []byte) (int, error) {
	for {
		n, err := r.port.Read(p)
		if n > 0 || (err != nil && !errors.Is(err, io.EOF)) {
			return n, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

type agent struct {
	send  sync.Mutex // locked while a frame is sent
	port  *os.File
	epoch int64 // result of monotonicEpoch

	mu      sync.Mutex
	running map[uint64]*running // protected by mu
}

// running is a running command.
type running struct {
	cancel context.CancelFunc
	stdin  *os.File // standard input to which Input writes, or nil for Run
}

// serve answers requests until the port fails. Each request has its own goroutine, except Input and Kill, whose order
// matters.
func (a *agent) serve(r io.Reader) error {
	for {
		f, body, err := wire.Read(r)
		if err != nil {
			return err
		}
		switch f.Op {
		case wire.Run:
			go a.run(f, body)
		case wire.Start:
			a.start(f)
		case wire.Input:
			if c := a.find(f.ID); c != nil && c.stdin != nil {
				// An error means that the command has ended, which is reported separately.
				_, _ = c.stdin.Write(body)
			}
		case wire.Kill:
			if c := a.find(f.ID); c != nil {
				c.cancel()
			}
		case wire.Push:
			go func() { a.done(f.ID, nil, nil, push(f, body)) }()
		case wire.Pull:
			go func() {
				content, err := os.ReadFile(f.Path)
				a.done(f.ID, content, nil, err)
			}()
		default:
			a.done(f.ID, nil, nil, fmt.Errorf("unknown request %q", f.Op))
		}
	}
}

func (a *agent) add(id uint64, c *running) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running[id] = c
}

func (a *agent) find(id uint64) *running {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running[id]
}

func (a *agent) forget(id uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.running, id)
}

// command returns a command in its own process group, so that its children are killed with it.
func command(ctx context.Context, argv []string) *exec.Cmd {
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	return c
}

// run executes a command until it ends or times out.
func (a *agent) run(f wire.Frame, stdin []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(f.TimeoutMS)*time.Millisecond)
	defer cancel()
	var stdout, stderr bytes.Buffer
	c := command(ctx, f.Argv)
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	err := c.Run()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	a.done(f.ID, stdout.Bytes(), stderr.Bytes(), err)
}

// start starts a command whose output is sent back line by line.
func (a *agent) start(f wire.Frame) {
	ctx, cancel := context.WithCancel(context.Background())
	c := command(ctx, f.Argv)
	in, out, err := startWithPipes(c)
	if err != nil {
		cancel()
		a.done(f.ID, nil, nil, err)
		return
	}
	a.add(f.ID, &running{cancel, in})
	go func() {
		defer cancel()
		defer in.Close()
		defer out.Close()
		a.lines(f.ID, out)
		a.forget(f.ID)
		a.done(f.ID, nil, nil, c.Wait())
	}()
}

// startWithPipes starts a command and returns the other ends of its standard input and of its combined output.
func startWithPipes(c *exec.Cmd) (in, out *os.File, err error) {
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer theirIn.Close()
	out, theirOut, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, nil, err
	}
	defer theirOut.Close()
	c.Stdin, c.Stdout, c.Stderr = theirIn, theirOut, theirOut
	if err := c.Start(); err != nil {
		in.Close()
		out.Close()
		return nil, nil, err
	}
	return in, out, nil
}

// lines sends each line with the time at which the agent read it.
func (a *agent) lines(id uint64, r io.Reader) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		now := time.Now().UnixNano()
		a.reply(wire.Frame{ID: id, Op: wire.Line, UnixNano: now, MonotonicNano: now - a.epoch}, lines.Bytes())
	}
}

// monotonicEpoch returns the time at which CLOCK_MONOTONIC was 0. It is constant, because nothing sets the clock of a
// test machine. It uses the reading with the shortest delay.
func monotonicEpoch() int64 {
	epoch, best := int64(0), time.Hour
	for range 1000 {
		before := monotonic()
		now := time.Now().UnixNano()
		if took := time.Duration(monotonic() - before); took < best {
			epoch, best = now-before, took
		}
	}
	return epoch
}

// monotonic returns CLOCK_MONOTONIC, which Go does not export.
func monotonic() int64 {
	const clockMonotonic = 1
	var t syscall.Timespec
	// With a valid clock and address the call cannot fail.
	_, _, _ = syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&t)), 0)
	return t.Nano()
}

func (a *agent) done(id uint64, stdout, stderr []byte, err error) {
	f := wire.Frame{ID: id, Op: wire.Done, Stdout: len(stdout)}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		f.Code = exit.ExitCode()
	case err != nil:
		f.Code, f.Err = -1, err.Error()
	}
	a.reply(f, append(stdout, stderr...))
}

func (a *agent) reply(f wire.Frame, body []byte) {
	a.send.Lock()
	defer a.send.Unlock()
	if err := wire.Write(a.port, f, body); err != nil {
		log.Fatal(err)
	}
}

// push writes a temporary file and renames it, so that a running program can be replaced.
func push(f wire.Frame, body []byte) error {
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return err
	}
	part := f.Path + ".part"
	if err := os.WriteFile(part, body, 0o600); err != nil {
		return err
	}
	if err := os.Chmod(part, os.FileMode(f.Mode)); err != nil {
		return err
	}
	return os.Rename(part, f.Path)
}
