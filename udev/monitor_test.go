// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/need"
)

// wire is a monitor in its own network namespace, with a thread there that sends to it.
type wire struct {
	*Monitor
	do     chan func(fd int)
	events chan Event
	done   chan error
	cancel context.CancelFunc
}

func newWire(t *testing.T) *wire {
	t.Helper()
	if os.Getuid() != 0 {
		need.Lacks(t, "root", "only root may send to the multicast groups of netlink")
	}
	w := &wire{do: make(chan func(int)), events: make(chan Event), done: make(chan error, 1)}
	ready := make(chan error)
	go w.run(ready)
	if err := <-ready; errors.Is(err, unix.EPERM) {
		need.Lacks(t, "root", "no network namespace for this test: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(w.do)
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// run keeps its thread locked, so the thread ends with it.
func (w *wire) run(ready chan<- error) {
	runtime.LockOSThread()
	err := unix.Unshare(unix.CLONE_NEWNET)
	if err == nil {
		w.Monitor, err = OpenMonitor()
	}
	var fd int
	if err == nil {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	}
	ready <- err
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for f := range w.do {
		f(fd)
	}
}

// on runs f on the thread in the network namespace.
func (w *wire) on(f func(fd int)) {
	done := make(chan struct{})
	w.do <- func(fd int) { defer close(done); f(fd) }
	<-done
}

func (w *wire) send(t *testing.T, group uint32, messages ...[]byte) {
	t.Helper()
	w.on(func(fd int) {
		for _, message := range messages {
			err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: group})
			// ENOBUFS means that a listener's queue is full, and ECONNREFUSED that there is no listener.
			if err != nil && err != unix.ENOBUFS && err != unix.ECONNREFUSED {
				t.Errorf("send: %v", err)
			}
		}
	})
}

// listen starts a Listen. expect receives its events.
func (w *wire) listen(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w.cancel = cancel
	go func() { w.done <- w.Listen(ctx, w.events) }()
	t.Cleanup(func() {
		cancel()
		if err := <-w.done; !errors.Is(err, context.Canceled) {
			t.Errorf("Listen: %v", err)
		}
	})
}

func (w *wire) expect(t *testing.T, action, sysPath string) Event {
	t.Helper()
	select {
	case e := <-w.events:
		if e.Action != action || e.Device.SysPath != sysPath || e.Received.IsZero() {
			t.Fatalf("event %+v, want %s %s", e, action, sysPath)
		}
		return e
	case err := <-w.done:
		w.done <- err
		t.Fatalf("Listen: %v", err)
	case <-time.After(10 * time.Second):
		t.Fatalf("no event, want %s %s", action, sysPath)
	}
	return Event{}
}

func message(action, name string) []byte {
	return encode("ACTION="+action, "DEVPATH=/devices/"+name, "SUBSYSTEM=test", "SEQNUM=7")
}

func TestMonitor(t *testing.T) {
	w := newWire(t)
	w.send(t, groupUdevBit, message("add", "early")) // queued since the monitor was opened
	w.listen(t)
	w.expect(t, "add", "/sys/devices/early")
	w.send(t, 1, message("add", "kernel"))                  // another group
	w.send(t, groupUdevBit, []byte("rubbish"))              // malformed
	w.send(t, groupUdevBit, make([]byte, largestMessage+1)) // too long
	w.expect(t, Overflow, "")
	w.send(t, groupUdevBit, encode(
		"ACTION=move", "DEVPATH=/devices/new", "DEVPATH_OLD=/devices/old", "SUBSYSTEM=test", "SEQNUM=8",
	))
	w.expect(t, "move", "/sys/devices/new")
	if got, want := w.Dropped(), (Dropped{Malformed: 2}); got != want {
		t.Errorf("dropped %+v, want %+v", got, want)
	}
}

func TestMonitorForeign(t *testing.T) {
	w := newWire(t)
	w.listen(t)
	w.on(func(fd int) {
		// The raw system call changes this thread only, unlike unix.Setresuid. The effective uid stays 0, because
		// sending needs it. The kernel adds the real uid to each message.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 1000, 0, 0); errno != 0 {
			t.Errorf("setresuid: %v", errno)
		}
	})
	w.send(t, groupUdevBit, message("add", "foreign"))
	w.on(func(int) { unix.RawSyscall(unix.SYS_SETRESUID, 0, 0, 0) })
	port, err := w.port()
	if err != nil {
		t.Fatal(err)
	}
	w.on(func(fd int) { // sent to the address of the monitor alone
		if err := unix.Sendto(fd, message("add", "unicast"), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}); err != nil {
			t.Errorf("send: %v", err)
		}
	})
	w.send(t, groupUdevBit, message("add", "real"))
	w.expect(t, "add", "/sys/devices/real")
	if got, want := w.Dropped(), (Dropped{Foreign: 2}); got != want {
		t.Errorf("dropped %+v, want %+v", got, want)
	}
}

func (m *Monitor) port() (port uint32, err error) {
	conn, err := m.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := conn.Control(func(fd uintptr) {
		var address unix.Sockaddr
		if address, err = unix.Getsockname(int(fd)); err == nil {
			port = address.(*unix.SockaddrNetlink).Pid
		}
	})
	return port, errors.Join(err, controlErr)
}

// The loop of go-udev (DeviceChan) stops receiving permanently here. It takes ENOBUFS for an empty queue, and its
// edge-triggered epoll reports nothing more while the buffer is full.
func TestMonitorOverflow(t *testing.T) {
	w := newWire(t)
	w.setBuffer(t, 8<<10)
	var burst [][]byte
	for i := range 500 {
		burst = append(burst, message("add", fmt.Sprint(i)))
	}
	w.send(t, groupUdevBit, burst...)
	w.listen(t)
	w.expect(t, "add", "/sys/devices/0") // the events that fitted into the queue
	for e := range w.events {
		if e.Action == Overflow {
			break
		}
	}
	w.send(t, groupUdevBit, message("add", "later"))
	w.expect(t, "add", "/sys/devices/later")
	if got := w.Dropped().Overflows; got != 1 {
		t.Errorf("%d overflows", got)
	}
}

func (w *wire) setBuffer(t *testing.T, size int) {
	t.Helper()
	conn, err := w.file.SyscallConn()
	if err == nil {
		err = conn.Control(func(fd uintptr) {
			if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size); err != nil {
				t.Errorf("set receive buffer: %v", err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestMonitorFromFile(t *testing.T) {
	w := newWire(t)
	passed := make(chan *Monitor, 1)
	w.on(func(int) {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
		if err != nil {
			t.Error(err)
			return
		}
		f := os.NewFile(uintptr(fd), "from systemd") // in blocking mode, as systemd passes it
		defer f.Close()
		if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groupUdevBit}); err != nil {
			t.Error(err)
		}
		m, err := MonitorFromFile(f)
		if err != nil {
			t.Error(err)
		}
		passed <- m
	})
	if t.Failed() {
		return
	}
	own := w.Monitor
	defer own.Close()
	w.Monitor = <-passed
	w.listen(t)
	w.send(t, groupUdevBit, message("add", "x"))
	w.expect(t, "add", "/sys/devices/x")
}
