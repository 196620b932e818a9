// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// groupBit stands for multicast group 2, to which udevd sends.
const groupBit = 1 << 1

// wire is a network namespace of its own, in which we are udevd: a thread there sends to the event sockets of it.
type wire struct {
	do chan func(fd int)
}

// newWire makes the namespace and opens a listener in it, on its thread. Sockets stay in the namespace they were made in.
func newWire(open func() error) (*wire, error) {
	w := &wire{do: make(chan func(int))}
	ready := make(chan error)
	go w.run(open, ready)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("open an event socket in a network namespace: %w", err)
	}
	return w, nil
}

// run keeps the thread, which is not unlocked and so ends with it.
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

// send sends the messages one after the other and returns when the first was on its way.
func (w *wire) send(messages ...[]byte) (begun time.Time, err error) {
	done := make(chan error, 1)
	w.do <- func(fd int) {
		var err error
		begun = time.Now()
		for _, m := range messages {
			// Also sent to the kernel, which does not listen: that it refuses is no error.
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

// listener is the barest event socket there is.
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
