// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"golang.org/x/sys/unix"
)

// received is one message and where it came from.
type received struct {
	message     []byte // valid until the next one is received
	truncated   bool
	overflow    bool        // the kernel dropped messages, and those that it kept have been read since, so nothing else is set
	groups      uint32      // of the address it was sent to, or 0 for this socket alone
	credentials *unix.Ucred // of the sender, as the kernel saw it, or nil
}

// receiver holds the buffers for one message.
type receiver struct {
	message, control []byte
	overflown        bool // and the queue has not been empty since
}

func newReceiver() *receiver {
	return &receiver{make([]byte, largestMessage), make([]byte, 256), false}
}

// readOn reads on after an overflow. The kernel reports it once, with ENOBUFS, but goes on dropping messages until the queue
// is empty (NETLINK_S_CONGESTED in net/netlink/af_netlink.c). A reader that looks at everything again before that misses
// events for good. So the overflow is reported when the queue is empty.
func (r *receiver) readOn(fd int) (received, error) {
	for {
		got, err := r.read(fd)
		switch {
		case err == unix.ENOBUFS:
			r.overflown = true
		case err == unix.EAGAIN && r.overflown:
			r.overflown = false
			return received{overflow: true}, nil
		default:
			return got, err
		}
	}
}

// read reads a message if there is one.
func (r *receiver) read(fd int) (received, error) {
	// As an argument, MSG_TRUNC asks for the true length of a message that is longer than the buffer.
	n, controlLen, flags, from, err := unix.Recvmsg(fd, r.message, r.control, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
	if err != nil {
		return received{}, err
	}
	got := received{
		message:     r.message[:min(n, len(r.message))],
		truncated:   flags&unix.MSG_TRUNC != 0,
		credentials: sender(r.control[:controlLen]),
	}
	if netlink, ok := from.(*unix.SockaddrNetlink); ok {
		got.groups = netlink.Groups
	}
	return got, nil
}

// sender returns the credentials that came with a message.
func sender(control []byte) *unix.Ucred {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for _, message := range messages {
		if credentials, err := unix.ParseUnixCredentials(&message); err == nil {
			return credentials
		}
	}
	return nil
}
