// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// groupUdev is the multicast group to which udevd sends a device when its node, links and permissions are ready. Group 1
	// has the kernel's own events. A group's bit in an address is 1 << (group - 1).
	groupUdev    = 2
	groupUdevBit = 1 << (groupUdev - 1)

	// receiveBuffer is what libudev asks for as well. An event takes more than 1 KiB of it.
	receiveBuffer = 128 << 20 // bytes

	// largestMessage is far above what udevd sends. The kernel's part alone is at most 2 KiB (UEVENT_BUFFER_SIZE).
	largestMessage = 64 << 10 // bytes
)

// Monitor is the socket on which udevd reports events. It queues them from the moment it is opened.
//
// It is our own instead of libudev's, for three reasons. A socket from systemd needs no network namespace of the host.
// libudev cannot tell an overflow from an empty queue. And without /run/udev/control it silently joins no group.
type Monitor struct {
	file             *os.File
	message, control []byte // room for one message
	overflown        bool   // and the queue has not been empty since

	foreign, malformed, overflows atomic.Uint64
}

// Dropped counts what was read and not sent on, since the monitor was opened.
type Dropped struct {
	Foreign   uint64 // messages of senders other than uid 0, or not sent to udev's group
	Malformed uint64 // messages that could not be decoded
	Overflows uint64 // times that the kernel had to drop messages, each reported as [Overflow]

	Overwritten uint64 // times that the kernel's log was overwritten before it was read, which loses the messages
}

// OpenMonitor opens the socket. Events of the machine come only in the host's network namespace. The kernel grants the
// whole receive buffer only with CAP_NET_ADMIN, else net.core.rmem_max.
func OpenMonitor() (*Monitor, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("open udev event socket: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) // a small buffer overflows sooner, no more
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groupUdevBit}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open udev event socket: %w", err)
	}
	return newMonitor(fd)
}

// MonitorFromFile takes the socket that systemd passes for ListenNetlink=kobject-uevent 2. The monitor has a descriptor of
// its own. f stays the caller's and may be closed.
func MonitorFromFile(f *os.File) (*Monitor, error) {
	own, err := duplicate(f)
	if err != nil {
		return nil, fmt.Errorf("take udev event socket: %w", err)
	}
	return newMonitor(own)
}

// newMonitor makes a monitor of a socket, which it closes if there is an error.
func newMonitor(fd int) (*Monitor, error) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) // else the buffer stays as it is
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("take udev event socket: %w", err)
	}
	return &Monitor{file: os.NewFile(uintptr(fd), "udev"), message: make([]byte, largestMessage), control: make([]byte, 256)}, nil
}

// Close closes the socket. A Listen that runs returns an error.
func (m *Monitor) Close() error { return m.file.Close() }

// Dropped returns the counters. It is safe for concurrent use.
func (m *Monitor) Dropped() Dropped {
	return Dropped{Foreign: m.foreign.Load(), Malformed: m.malformed.Load(), Overflows: m.overflows.Load()}
}

// Listen sends every event to events until ctx ends, whose error it then returns. It may be called once. If events were lost,
// an [Overflow] follows the events that the kernel kept. After it nothing is missing.
func (m *Monitor) Listen(ctx context.Context, events chan<- Event) error {
	var event Event
	return each(ctx, "read udev event socket", m.file, func(fd int) (err error) {
		event, err = m.next(fd)
		return err
	}, func() error {
		event.Received = time.Now()
		return send(ctx, event, events)
	})
}

func send(ctx context.Context, event Event, events chan<- Event) error {
	select {
	case events <- event:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
