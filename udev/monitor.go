// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// groupUdev is the multicast group for udevd's events. udevd sends the event for a device when the node, links and
	// permissions are ready. The kernel sends its own events to group 1. The bit for a group in an address is 1 << (group - 1).
	groupUdev    = 2
	groupUdevBit = 1 << (groupUdev - 1)

	// receiveBuffer is the size of the receive buffer. libudev uses the same size. Each event needs more than 1 KiB.
	receiveBuffer = 128 << 20 // bytes

	// largestMessage is the maximum size of a message. Real messages are far smaller, because the kernel's properties take up at
	// most 2 KiB (UEVENT_BUFFER_SIZE).
	largestMessage = 64 << 10 // bytes
)

// Monitor is a socket that receives events from udevd. Monitor queues events from the moment it is opened.
//
// Monitor replaces libudev's monitor for three reasons. A socket passed by systemd works outside the host's network namespace.
// libudev cannot distinguish an overflow from an empty queue. If /run/udev/control is missing, libudev does not join a group, and
// does not report an error.
type Monitor struct {
	file *os.File
	// The fields message and control are buffers for one message and its control data.
	message, control []byte
	overflown        bool // set if events were lost, and the queue has not been empty since
}

// OpenMonitor uses the socket that systemd passes for ListenNetlink=kobject-uevent 2, or opens a new one if passed is nil.
// OpenMonitor duplicates a passed descriptor. The caller still owns the file and may close it. Outside the host's network
// namespace, a new socket receives no events. Without CAP_NET_ADMIN, the kernel limits the receive buffer to net.core.rmem_max.
func OpenMonitor(passed *os.File) (*Monitor, error) {
	open := func() (fd int, err error) { return duplicate(passed) }
	if passed == nil {
		open = newEventSocket
	}
	fd, err := open()
	if err == nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) // if this fails, the buffer keeps its size
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}
	if err != nil {
		unix.Close(fd) // does nothing if there is no socket
		return nil, fmt.Errorf("open udev event socket: %w", err)
	}
	return &Monitor{file: os.NewFile(uintptr(fd), "udev"), message: make([]byte, largestMessage), control: make([]byte, 256)}, nil
}

// newEventSocket returns a socket that is a member of udev's multicast group. Even if there is an error, the caller must close the
// socket.
func newEventSocket() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return -1, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) // if this fails, the queue overflows earlier
	return fd, unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groupUdevBit})
}

// Close closes the socket. A call to Listen that is in progress then returns an error.
func (m *Monitor) Close() error { return m.file.Close() }

// Listen sends every event to the channel events until ctx ends, and returns the context's error. Listen may be called only once.
// If events were lost, Listen sends one [Overflow] as soon as the queue is empty. A receiver that enumerates all devices after
// the [Overflow] misses no change.
func (m *Monitor) Listen(ctx context.Context, events chan<- Event) error {
	var event Event
	return pollEach(ctx, "read udev event socket", m.file, func(fd int) (err error) {
		event, err = m.receive(fd)
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

// A message that udevd sends to its listeners begins with struct monitor_netlink_header (systemd,
// src/libsystemd/sd-device/device-monitor.c). The offsets are relative to the start of the message. All numbers except the magic
// number are in native byte order.
const (
	prefix       = "libudev\x00"
	magic        = 0xfeedcafe
	offMagic     = 8
	offHead      = 12 // size of the head
	offProperty  = 16 // offset of the properties
	offLength    = 20 // length of the properties in bytes
	shortestHead = 24
)

// decode parses a message from udevd. The caller must set the event's Received field.
func decode(message []byte) (Event, error) {
	text, err := payload(message)
	if err != nil {
		return Event{}, err
	}
	all := make(map[string]string)
	for field := range strings.SplitSeq(strings.TrimRight(text, "\x00"), "\x00") {
		key, value, ok := strings.Cut(field, "=")
		if !ok || key == "" {
			return Event{}, fmt.Errorf("decode udev message: %.60q is not a property", field)
		}
		all[key] = value
	}
	return newEvent(all)
}

// payload checks the sizes in a message's header and returns the part after the header.
func payload(message []byte) (string, error) {
	if len(message) < shortestHead || string(message[:len(prefix)]) != prefix {
		return "", errors.New("decode udev message: the message does not begin with libudev")
	}
	if got := binary.BigEndian.Uint32(message[offMagic:]); got != magic {
		return "", fmt.Errorf("decode udev message: magic number %#x, expected %#x", got, uint32(magic))
	}
	size := uint64(len(message))
	head := uint64(binary.NativeEndian.Uint32(message[offHead:]))
	begin := uint64(binary.NativeEndian.Uint32(message[offProperty:]))
	length := uint64(binary.NativeEndian.Uint32(message[offLength:]))
	if head < shortestHead || begin < head || begin+length > size {
		return "", fmt.Errorf("decode udev message: a header of %d bytes, and %d bytes at offset %d, do not fit into %d bytes", head, length, begin, size)
	}
	return string(message[begin : begin+length]), nil
}

// newEvent returns an event with the properties from a message. The device does not have the properties that belong to the event,
// because two copies of an unchanged device must be equal.
func newEvent(all map[string]string) (Event, error) {
	old, moved := all["DEVPATH_OLD"]
	if all["ACTION"] == "" || all["SUBSYSTEM"] == "" || !isDevPath(all[devPath]) || moved && !isDevPath(old) {
		return Event{}, errors.New("decode udev message: no ACTION or SUBSYSTEM, or an invalid DEVPATH or DEVPATH_OLD")
	}
	action := all["ACTION"]
	delete(all, "ACTION")
	delete(all, "SEQNUM")
	return Event{Action: action, Device: NewDevice("/sys"+all[devPath], all)}, nil
}

// isDevPath reports whether a path stays below /sys when it is appended to "/sys".
func isDevPath(p string) bool { return len(p) > 1 && p[0] == '/' && path.Clean(p) == p }

// receive receives one event. If the queue is empty, the error is EAGAIN.
//
// The kernel reports an overflow once, with ENOBUFS, but continues to drop messages until the queue is empty (NETLINK_S_CONGESTED
// in net/netlink/af_netlink.c). A receiver that enumerated all devices earlier would miss the messages that the kernel drops
// later. The overflow is therefore reported as soon as the queue is empty, and not before.
func (m *Monitor) receive(fd int) (Event, error) {
	for {
		// With the flag MSG_TRUNC, the kernel returns the true length of a message even if the message is longer than the
		// buffer.
		n, controlLen, flags, from, err := unix.Recvmsg(fd, m.message, m.control, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case err == unix.ENOBUFS:
			m.overflown = true
		case err == unix.EAGAIN && m.overflown:
			m.overflown = false
			return Event{Action: Overflow}, nil
		case err != nil:
			return Event{}, err
		case !isTrusted(from, m.control[:controlLen]): // ignore the message
		case flags&unix.MSG_TRUNC != 0: // an event was lost, because its message was too long
			return Event{Action: Overflow}, nil
		default:
			if event, err := decode(m.message[:n]); err == nil {
				return event, nil
			}
		}
	}
}

// isTrusted reports whether a message may be from udevd, which runs as uid 0 and sends to udev's group. The root user of
// another user namespace has a different uid in this namespace. A message that was sent to this socket alone, rather than to
// the group, is not from udevd.
func isTrusted(from unix.Sockaddr, control []byte) bool {
	netlink, ok := from.(*unix.SockaddrNetlink)
	if !ok || netlink.Groups != groupUdevBit {
		return false
	}
	messages, _ := unix.ParseSocketControlMessage(control)
	for _, message := range messages {
		if sender, err := unix.ParseUnixCredentials(&message); err == nil {
			return sender.Uid == 0
		}
	}
	return false
}
