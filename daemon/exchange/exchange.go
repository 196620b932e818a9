// SPDX-License-Identifier: Apache-2.0

// Package exchange transfers one request and one answer between the daemon and a helper. A helper is a program that does work
// that the daemon is not allowed to do. Each run of a helper answers one request.
//
// The daemon and the helper use a unix socket that preserves message boundaries (SOCK_SEQPACKET, unix(7)), so a message arrives
// as a whole or not at all. The service manager accepts the connection, and starts the program with the connection as its
// standard input (systemd.socket(5), Accept=yes). Without a service manager, [Peer] starts the program itself.
package exchange

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// MessageSize is the maximum size of a message in bytes. By default, a unix socket accepts messages of more than three times this
// size (net.core.wmem_default, 212992).
const MessageSize = 64 << 10

// ErrForeign means that the peer must not be trusted. A server trusts only clients with uid 0 or its own uid. With
// [Peer].Activated, a client trusts only a socket on which systemd listens.
var ErrForeign = errors.New("peer is not allowed")

// ErrMessage means that the peer sent an invalid message.
var ErrMessage = errors.New("malformed message")

// Encode returns a value as JSON (RFC 8259). Encode panics if JSON cannot represent the value.
func Encode(v any) []byte {
	message, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return message
}

// Decode parses a message, which must be one JSON value. If the message has an unknown field, Decode returns [ErrMessage],
// because the sender expects each field to have an effect.
func Decode[T any](message []byte) (v T, err error) {
	d := json.NewDecoder(bytes.NewReader(message))
	d.DisallowUnknownFields()
	if err = d.Decode(&v); err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return v, nil
		}
		err = errors.New("bytes after the JSON value")
	}
	return *new(T), fmt.Errorf("%w: %w: %.80q", ErrMessage, err, message)
}

// Answer handles a request and returns the answer. The context ends when the peer stops waiting. The parameter pid is the process
// that sends the request (SO_PEERCRED in unix(7)). If the program runs as a child process (see [Direct]), pid is the parent
// process. The parameter is 0 if the process is in another PID namespace.
type Answer func(ctx context.Context, pid int, request []byte) []byte

// Serve reads one request from standard input and answers it. Serve blocks until it has sent the answer. If the peer must not be
// trusted, Serve returns [ErrForeign] and does not read the request. If the peer no longer waits for the answer, Serve returns no
// error.
func Serve(answer Answer) error { return serve(int(os.Stdin.Fd()), answer) }

func serve(fd int, answer Answer) error {
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return fmt.Errorf("get the peer of standard input: %w", err)
	}
	if peer.Uid != 0 && peer.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("serve uid %d (pid %d): %w", peer.Uid, peer.Pid, ErrForeign)
	}
	request, err := receive(fd)
	if err != nil {
		return fmt.Errorf("receive the request: %w", err)
	}
	if hungUp(fd, 0) { // for example because metalplugd was killed; its next run may already have repeated the request
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		hungUp(fd, -1)
		cancel()
	}()
	if err := send(fd, answer(ctx, int(peer.Pid), request)); err != nil && ctx.Err() == nil {
		return fmt.Errorf("send the answer: %w", err)
	}
	return nil
}

// hungUp reports whether the peer has closed or shut down its end of the socket, or whether fd is closed. The parameter timeout
// is the maximum waiting time, in milliseconds. With -1, hungUp waits indefinitely.
func hungUp(fd, timeout int) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	for {
		n, err := unix.Poll(poll, timeout)
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

func send(fd int, message []byte) error {
	if len(message) > MessageSize {
		return fmt.Errorf("message is too long: %d bytes, at most %d are allowed", len(message), MessageSize)
	}
	return unix.Sendto(fd, message, unix.MSG_NOSIGNAL, nil)
}

// receive returns the next message. No peer sends an empty message, so an empty message means that the peer has disconnected.
// Signals interrupt neither receive nor send, because Go installs its handlers with SA_RESTART (signal(7)).
func receive(fd int) ([]byte, error) {
	message := make([]byte, MessageSize)
	n, _, flags, _, err := unix.Recvmsg(fd, message, nil, 0)
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, errors.New("peer closed the connection without an answer")
	case flags&unix.MSG_TRUNC != 0:
		return nil, fmt.Errorf("message is too long: more than %d bytes", MessageSize)
	}
	return message[:n], nil
}

// Main is the main function of a program that answers one request. Main calls serve for this request and returns the exit code of
// the program. If an operator starts the program manually, Main prints the text "about", which describes the program in complete
// lines and names the command to use instead. The parameter args contains the program's arguments.
func Main(name, about string, args []string, serve func() error) int {
	if len(args) > 0 {
		if slices.Contains([]string{"--help", "-help", "-h"}, args[0]) {
			fmt.Fprintf(os.Stdout, "%s %s", name, about)
			return 0
		}
		fmt.Fprintf(os.Stderr, "%s: unexpected argument: %q\nSee '%s --help'.\n", name, args[0], name)
		return 2
	}
	err := serve()
	switch {
	case err == nil:
		return 0
	case errors.Is(err, unix.ENOTSOCK):
		fmt.Fprintf(os.Stderr, "%s: standard input is not a socket, so there is no request\n%s %s", name, name, about)
	default:
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	}
	return 1
}
