// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAlive checks that a source that waits for events answers each question, and loses no event by that.
func TestAlive(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	log, err := kernelLogFromFile(reader)
	if err != nil {
		t.Fatal(err)
	}
	reader.Close()
	proc, _ := namespace(t) // a mount on this host during the test is an event too
	mounts, err := openMounts(proc)
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t)
	s := &System{monitor: w.Monitor, mounts: mounts, udevd: present(t), log: log}
	defer mounts.close()
	defer log.close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	early := make(chan error, 1)
	go func() { early <- s.Alive(ctx) }() // the question waits for Listen
	go func() { w.done <- s.Listen(ctx, w.events) }()
	if err := <-early; err != nil {
		t.Error(err)
	}
	for n := range 20 {
		asked := make(chan error, 1)
		go func() { asked <- s.Alive(ctx) }()
		w.send(t, groupUdevBit, message("add", fmt.Sprint("x", n)))
		w.expect(t, "add", fmt.Sprint("/sys/devices/x", n))
		if err := <-asked; err != nil {
			t.Error(err)
		}
	}
	cancel()
	if err := <-w.done; !errors.Is(err, context.Canceled) {
		t.Errorf("Listen: %v", err)
	}
	if err := s.Alive(t.Context()); err != nil {
		t.Errorf("after the end: %v", err)
	}
}

// queued reports whether there is a message that the monitor has not read.
func (w *wire) queued(t *testing.T) bool {
	t.Helper()
	conn, err := w.file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var readErr error
	if err := conn.Control(func(fd uintptr) {
		_, _, readErr = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	}); err != nil {
		t.Fatal(err)
	}
	return readErr != unix.EAGAIN
}

// A monitor whose events are not taken makes no progress, and reports it. The question does no harm after that.
func TestNotAlive(t *testing.T) {
	w := newWire(t)
	w.events = make(chan Event)
	w.listen(t)
	w.send(t, groupUdevBit, message("add", "x"))
	ask := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		return w.Alive(ctx)
	}
	for w.queued(t) { // until it has the event
		runtime.Gosched()
	}
	for range 3 {
		if err := ask(); err == nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the events of udev") {
			t.Fatalf("Alive: %v", err)
		}
	}
	w.expect(t, "add", "/sys/devices/x")
	if err := w.Alive(t.Context()); err != nil {
		t.Error(err)
	}
	w.send(t, groupUdevBit, message("add", "y"))
	w.expect(t, "add", "/sys/devices/y")
}
