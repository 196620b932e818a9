// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// limited is a listener that lets only so many in. Those beyond are accepted and told so: left in the queue of the
// socket, they would wait without knowing for what.
type limited struct {
	net.Listener
	own     int // uid of the daemon; -1: nobody has a reserved place
	open    atomic.Int64
	turning chan struct{} // has a value for each that is being turned away
}

// newLimited returns a listener with room for all clients; own is the uid that has reserved places beside uid 0.
func newLimited(l net.Listener, own int) *limited {
	return &limited{Listener: l, own: own, turning: make(chan struct{}, turnedAway)}
}

// Accept waits for the next client for whom there is room.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.room(c) {
			return &counted{Conn: c, leave: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
		}
		l.open.Add(-1)
		l.turnAway(c)
	}
}

// room is how many clients there may be if this is the last one. Who it is is asked of the kernel, which costs a system
// call; a client over a network is nobody in particular.
func (l *limited) room(c net.Conn) int64 {
	if l.own < 0 {
		return connections - reserved
	}
	if peer, err := peerOf(c); err == nil && (peer.Uid == 0 || int(peer.Uid) == l.own) {
		return connections
	}
	return connections - reserved
}

// tooMany is the answer to whoever is one too many.
func tooMany() string {
	const head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
	const body = `{"error":"the daemon has as many clients as it serves at once: try again, or find those that stay: ss -xp | grep control.sock"}` + "\n"
	return fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
}

// turnAway tells a client that it is one too many, once it has begun to ask: an answer before the question is none to Go's
// HTTP client. What it sends is read: closing a unix socket with something unread makes it an error for the peer before it
// has read the answer (unix_release_sock).
func (l *limited) turnAway(c net.Conn) {
	select {
	case l.turning <- struct{}{}:
	default:
		c.Close()
		return
	}
	go func() {
		defer func() { <-l.turning }()
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(turnLimit))
		if _, err := c.Read(make([]byte, headerSize)); err != nil {
			return
		}
		if _, err := io.WriteString(c, tooMany()); err != nil {
			return
		}
		if u, ok := c.(*net.UnixConn); ok {
			_ = u.CloseWrite()
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(c, headerSize+bodySize)) // until it has read the answer and leaves
	}()
}

// counted is a client that has a place.
type counted struct {
	net.Conn
	leave func()
}

// Close gives the place to another.
func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// CloseWrite ends what is sent, so that the server can wait a moment for the client to read it.
func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
