// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"golang.org/x/sys/unix"
)

// receive receives one event. If the queue is empty, the error is EAGAIN.
//
// The kernel reports an overflow once, with ENOBUFS, but continues to drop messages until the queue is empty
// (NETLINK_S_CONGESTED in net/netlink/af_netlink.c). A receiver that enumerated all devices earlier would miss the messages
// that the kernel drops afterwards. The overflow is therefore reported as soon as the queue is empty, and not before.
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
			m.overflows.Add(1)
			return Event{Action: Overflow}, nil
		case err != nil:
			return Event{}, err
		case !isTrusted(from, m.control[:controlLen]):
			m.foreign.Add(1)
		case flags&unix.MSG_TRUNC != 0: // an event was lost, because its message was too long
			m.malformed.Add(1)
			return Event{Action: Overflow}, nil
		default:
			event, err := decode(m.message[:n])
			if err == nil {
				return event, nil
			}
			m.malformed.Add(1)
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
