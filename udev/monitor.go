// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// groupUdev is the multicast group to which udevd sends a device when its node, links and permissions are ready;
	// group 1 has the kernel's own events. A group's bit in an address is 1 << (group - 1).
	groupUdev    = 2
	groupUdevBit = 1 << (groupUdev - 1)

	// receiveBuffer is what libudev asks for as well: an event takes more than 1 KiB of it.
	receiveBuffer = 128 << 20 // bytes

	// largestMessage is far above what udevd sends: the kernel's part alone is at most 2 KiB (UEVENT_BUFFER_SIZE).
	largestMessage = 64 << 10 // bytes
)

// Monitor is the socket on which udevd reports events. It queues them from the moment it is opened.
//
// It is our own instead of libudev's, for three reasons: a socket from systemd needs no network namespace of the host;
// libudev cannot tell an overflow from an empty queue; and without /run/udev/control it silently joins no group.
type Monitor struct {
	file  *os.File
	pulse *pulse

	foreign, malformed, overflows atomic.Uint64
}

// Dropped counts what was read and not sent on, since the monitor was opened.
type Dropped struct {
	Foreign   uint64 // messages of senders other than uid 0, or not sent to udev's group
	Malformed uint64 // messages that could not be decoded
	Overflows uint64 // times that the kernel had to drop messages, each reported as [Overflow]

	Overwritten uint64 // times that the kernel's log was overwritten before it was read; nothing makes up for that
}

// OpenMonitor opens the socket. Events of the machine come only in the host's network namespace. The kernel grants the
// whole receive buffer only with CAP_NET_ADMIN, else net.core.rmem_max.
func OpenMonitor() (*Monitor, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("open udev event socket: %w", err)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) // a small buffer overflows sooner, no more
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groupUdevBit})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open udev event socket: %w", err)
	}
	return newMonitor(fd), nil
}

// MonitorFromFile takes the socket that systemd passes for ListenNetlink=kobject-uevent 2. The monitor has a descriptor
// of its own; f stays the caller's and may be closed.
func MonitorFromFile(f *os.File) (*Monitor, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("take udev event socket: %w", err)
	}
	own := -1
	if controlErr := conn.Control(func(fd uintptr) { own, err = duplicate(int(fd)) }); controlErr != nil {
		err = controlErr
	}
	if err != nil {
		return nil, fmt.Errorf("take udev event socket: %w", err)
	}
	return newMonitor(own), nil
}

// duplicate returns a descriptor for an event socket that is fit for the runtime's poller: systemd passes descriptors
// that block.
func duplicate(fd int) (int, error) {
	if err := checkSocket(fd); err != nil {
		return -1, err
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	_ = unix.SetsockoptInt(own, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) // else what the unit asks for
	err = unix.SetsockoptInt(own, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	if err == nil {
		err = unix.SetNonblock(own, true)
	}
	if err != nil {
		unix.Close(own)
		return -1, err
	}
	return own, nil
}

// checkSocket tells whether a descriptor is an event socket that has joined udev's group.
func checkSocket(fd int) error {
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return err
	}
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return err
	}
	if family != unix.AF_NETLINK || protocol != unix.NETLINK_KOBJECT_UEVENT {
		return fmt.Errorf("address family %d, protocol %d, expected a kobject-uevent socket", family, protocol)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	if netlink, ok := address.(*unix.SockaddrNetlink); !ok || netlink.Groups&groupUdevBit == 0 {
		return errors.New("it has not joined group 2, expected ListenNetlink=kobject-uevent 2")
	}
	return nil
}

func newMonitor(fd int) *Monitor {
	file := os.NewFile(uintptr(fd), "udev")
	return &Monitor{file: file, pulse: newPulse(file)}
}

// Close closes the socket; a Listen that runs returns an error.
func (m *Monitor) Close() error { return m.file.Close() }

// Dropped returns the counters. It is safe for concurrent use.
func (m *Monitor) Dropped() Dropped {
	return Dropped{Foreign: m.foreign.Load(), Malformed: m.malformed.Load(), Overflows: m.overflows.Load()}
}

// Listen sends every event to events until ctx ends, whose error it then returns. It may be called once. Where events
// were lost, what the kernel kept is followed by an [Overflow]; from that one on nothing is missing.
func (m *Monitor) Listen(ctx context.Context, events chan<- Event) error {
	defer m.pulse.begin(ctx)()
	r := newReceiver()
	for {
		got, err := r.receive(m.file)
		woken := m.pulse.woken(err)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if woken {
			continue
		}
		event, ok, err := m.judge(got, err)
		if err != nil {
			return fmt.Errorf("read udev event socket: %w", err)
		}
		if !ok {
			continue
		}
		event.Received = time.Now()
		if err := send(ctx, event, events); err != nil {
			return err
		}
		if old, moved := gone(event); moved {
			if err := send(ctx, old, events); err != nil {
				return err
			}
		}
	}
}

// Alive returns once Listen has gone round, or has ended, or with the error of ctx. It takes no event from it.
func (m *Monitor) Alive(ctx context.Context) error { return m.pulse.Alive(ctx, "events of udev") }

// judge makes an event of what was read, unless it is to be dropped. The error is one after which nothing can be read.
func (m *Monitor) judge(got received, err error) (event Event, ok bool, _ error) {
	switch {
	case errors.Is(err, errOverflow):
		m.overflows.Add(1)
		return Event{Action: Overflow}, true, nil
	case err != nil:
		return Event{}, false, err
	case !trusted(got):
		m.foreign.Add(1)
		return Event{}, false, nil
	case got.truncated: // something happened, and we cannot tell what
		m.malformed.Add(1)
		return Event{Action: Overflow}, true, nil
	}
	event, err = decode(got.message)
	if err != nil {
		m.malformed.Add(1)
		return Event{}, false, nil
	}
	return event, true, nil
}

// trusted tells whether udevd may have sent a message: uid 0 did, to all members of udev's group. Whoever is root in
// another user namespace has another uid here, and a message to this socket alone is not udevd's.
func trusted(got received) bool {
	return got.groups == groupUdevBit && got.credentials != nil && got.credentials.Uid == 0
}

func send(ctx context.Context, event Event, events chan<- Event) error {
	select {
	case events <- event:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
