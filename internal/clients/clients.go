// SPDX-License-Identifier: Apache-2.0

// Package clients accepts clients on a unix socket and limits their number, because each client needs a file descriptor.
package clients

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listener accepts clients on a unix socket.
type Listener struct {
	net.Listener
	// Accept calls Surplus after a new client has connected. Surplus returns the client to disconnect, or nil. The slice open
	// lists all clients, newest last.
	Surplus func(open []*Client) *Client

	mu   sync.Mutex
	open []*Client
}

// Client is a connection to the socket. The kernel recorded the client's uid and pid when the client connected, so a client
// cannot claim another uid later.
type Client struct {
	net.Conn
	unix.Ucred
	listener *Listener
}

// Accept waits for the next client and disconnects the client that the function Surplus selects.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer, err := Peer(conn)
		if err != nil {
			conn.Close()
			continue
		}
		c := &Client{Conn: conn, Ucred: *peer, listener: l}
		l.mu.Lock()
		l.open = append(l.open, c)
		surplus := l.Surplus(l.open)
		l.mu.Unlock()
		if surplus != nil {
			surplus.Close()
		}
		return c, nil
	}
}

// RemoteAddr returns the client itself, because net/http passes this address to each request's handler.
func (c *Client) RemoteAddr() net.Addr { return c }

// Network returns "unix".
func (c *Client) Network() string { return "unix" }

// String returns the client's uid in decimal, which net/http passes to a handler as Request.RemoteAddr.
func (c *Client) String() string { return strconv.FormatUint(uint64(c.Uid), 10) }

// Close closes the connection and removes the client from the listener's list.
func (c *Client) Close() error {
	c.listener.mu.Lock()
	c.listener.open = slices.DeleteFunc(c.listener.open, func(o *Client) bool { return o == c })
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// Peer returns the process at the other end of a unix socket connection, as recorded by the kernel (SO_PEERCRED, unix(7)). For an
// accepted connection, the result is the process that connected. For any other connection, the result is the listening process.
func Peer(c net.Conn) (peer *unix.Ucred, err error) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err == nil {
		closed := raw.Control(func(fd uintptr) {
			peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		})
		err = errors.Join(closed, err)
	}
	if err != nil {
		return nil, fmt.Errorf("get the peer: %w", err)
	}
	return peer, nil
}
