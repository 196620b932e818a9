// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// groupBit is the bit of multicast group 2, to which udevd sends.
const groupBit = 1 << 1

// wire is a network namespace with a thread that sends to its event sockets like udevd.
type wire struct {
	do chan func(fd int)
}

// newWire creates the namespace and opens a listener on the thread in it. Sockets stay in the namespace in which they
// were created.
func newWire(open func() error) (*wire, error) {
	w := &wire{do: make(chan func(int))}
	ready := make(chan error)
	go w.run(open, ready)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("open an event socket in a network namespace: %w", err)
	}
	return w, nil
}

// run does not unlock its thread, so the thread ends when run returns.
func (w *wire) run(open func() error, ready chan<- error) {
	runtime.LockOSThread()
	err := unix.Unshare(unix.CLONE_NEWNET)
	if err == nil {
		err = open()
	}
	fd := -1
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

func (w *wire) close() { close(w.do) }

// send sends messages one after the other, and returns the time before the first one was sent.
func (w *wire) send(messages ...[]byte) (begun time.Time, err error) {
	done := make(chan error, 1)
	w.do <- func(fd int) {
		var err error
		begun = time.Now()
		for _, m := range messages {
			// The message also goes to the kernel, which does not listen. The resulting ECONNREFUSED is not an error.
			to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groupBit}
			if e := unix.Sendto(fd, m, 0, to); e != nil && e != unix.ECONNREFUSED {
				err = fmt.Errorf("send an event: %w", e)
			}
		}
		done <- err
	}
	err = <-done
	return begun, err
}

// listener is a minimal event socket.
type listener struct {
	file   *os.File
	buffer []byte
}

func (l *listener) open() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groupBit}); err != nil {
		unix.Close(fd)
		return err
	}
	l.file, l.buffer = os.NewFile(uintptr(fd), "events"), make([]byte, 64<<10)
	return nil
}

// wait reads one event.
func (l *listener) wait() error {
	_, err := l.file.Read(l.buffer)
	return err
}
