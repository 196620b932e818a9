// SPDX-License-Identifier: Apache-2.0

package udev_test

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
	"github.com/metalplug/metalplug/udev"
)

// wire is a monitor in its own network namespace, with a thread there that sends to it.
type wire struct {
	*udev.Monitor
	socket *os.File // socket that systemd passes to the monitor
	do     chan func(fd int)
	events chan udev.Event
	done   chan error
	cancel context.CancelFunc
}

func newWire(t *testing.T) *wire {
	t.Helper()
	if os.Getuid() != 0 {
		need.Lacks(t, "root", "only root may send to the multicast groups of netlink")
	}
	w := &wire{do: make(chan func(int)), events: make(chan udev.Event), done: make(chan error, 1)}
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
	var own, fd int
	if err == nil { // systemd passes a socket in blocking mode
		own, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	}
	if err == nil {
		w.socket = os.NewFile(uintptr(own), "from systemd")
		defer w.socket.Close()
		err = unix.Bind(own, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groupUdevBit})
	}
	if err == nil {
		w.Monitor, err = udev.OpenMonitor(w.socket)
	}
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

func (w *wire) expect(t *testing.T, action, sysPath string) udev.Event {
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
	return udev.Event{}
}

// groupUdevBit is udev's multicast group (UDEV_MONITOR_UDEV of systemd).
const groupUdevBit = 2

func message(action, name string) []byte {
	return udev.Encode("ACTION="+action, "DEVPATH=/devices/"+name, "SUBSYSTEM=test", "SEQNUM=7")
}

func TestMonitor(t *testing.T) {
	w := newWire(t)
	w.send(t, groupUdevBit, message("add", "early")) // queued since the monitor was opened
	w.listen(t)
	w.expect(t, "add", "/sys/devices/early")
	w.send(t, 1, message("add", "kernel"))         // another group
	w.send(t, groupUdevBit, []byte("rubbish"))     // malformed
	w.send(t, groupUdevBit, make([]byte, 100<<10)) // too long
	w.expect(t, udev.Overflow, "")
	w.send(t, groupUdevBit, udev.Encode(
		"ACTION=move", "DEVPATH=/devices/new", "DEVPATH_OLD=/devices/old", "SUBSYSTEM=test", "SEQNUM=8",
	))
	w.expect(t, "move", "/sys/devices/new")
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
	address, err := unix.Getsockname(int(w.socket.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	port := address.(*unix.SockaddrNetlink).Pid
	w.on(func(fd int) { // sent to the address of the monitor alone
		if err := unix.Sendto(fd, message("add", "unicast"), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}); err != nil {
			t.Errorf("send: %v", err)
		}
	})
	w.send(t, groupUdevBit, message("add", "real"))
	w.expect(t, "add", "/sys/devices/real")
}

// The loop of go-udev (DeviceChan) stops receiving permanently here. It takes ENOBUFS for an empty queue, and its
// edge-triggered epoll reports nothing more while the buffer is full.
func TestMonitorOverflow(t *testing.T) {
	w := newWire(t)
	if err := unix.SetsockoptInt(int(w.socket.Fd()), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<10); err != nil {
		t.Fatal(err)
	}
	var burst [][]byte
	for i := range 500 {
		burst = append(burst, message("add", fmt.Sprint(i)))
	}
	w.send(t, groupUdevBit, burst...)
	w.listen(t)
	w.expect(t, "add", "/sys/devices/0") // the events that fitted into the queue
	for e := range w.events {
		if e.Action == udev.Overflow {
			break
		}
	}
	w.send(t, groupUdevBit, message("add", "later"))
	w.expect(t, "add", "/sys/devices/later")
}

// TestOpenMonitor checks that a monitor with its own socket gets the same events.
func TestOpenMonitor(t *testing.T) {
	w := newWire(t)
	passed := w.Monitor
	defer passed.Close()
	var err error
	w.on(func(int) { w.Monitor, err = udev.OpenMonitor(nil) })
	if err != nil {
		w.Monitor = passed
		t.Fatal(err)
	}
	w.listen(t)
	w.send(t, groupUdevBit, message("add", "x"))
	w.expect(t, "add", "/sys/devices/x")
}
