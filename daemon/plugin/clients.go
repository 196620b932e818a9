// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
)

// maxClients is how many connections a socket of ours has at once. The kubelet has one for its stream, and a second one
// while we register (kubernetes v1.36 pkg/kubelet/cm/devicemanager/plugin/v1beta1, client.go and handler.go).
const maxClients = 8

// clients is a listener that bounds the connections, and with them our descriptors. A new client is always let in: the kubelet
// dials again when it or we restart. The client that matters least is closed for it.
type clients struct {
	*net.UnixListener
	kubelet func(pid int32) bool // reports whether a process is the kubelet
	log     *slog.Logger

	mu   sync.Mutex
	open []*client // the oldest first
	full bool      // which was logged
}

// client is a connection to our socket.
type client struct {
	*net.UnixConn
	pid     int32 // of the process that connected
	clients *clients
	streams int // of ListAndWatch that are open; guarded by clients.mu
}

// Accept waits for the next client.
func (l *clients) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		peer, err := peerOf(conn)
		if err != nil {
			conn.Close()
			continue
		}
		c := &client{UnixConn: conn, pid: peer.Pid, clients: l}
		if least := l.add(c); least != nil {
			least.Close()
		}
		return c, nil
	}
}

// add notes a client and returns the one to close for it, or nil.
func (l *clients) add(c *client) (least *client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= maxClients {
		least = slices.MinFunc(l.open, func(a, b *client) int { return l.weight(a) - l.weight(b) }) // the first of equals
		l.remove(least)
		if !l.full {
			l.full = true
			l.log.Warn("too many clients", "detail", fmt.Sprintf("process %d was disconnected from the plugin socket: ss -xp names the others", least.pid))
		}
	}
	l.open = append(l.open, c)
	return least
}

// weight is how much a client matters. l.mu is held.
func (l *clients) weight(c *client) (weight int) {
	if l.kubelet(c.pid) {
		weight += 2
	}
	if c.streams > 0 {
		weight++
	}
	return weight
}

// remove forgets a client. l.mu is held.
func (l *clients) remove(c *client) {
	l.open = slices.DeleteFunc(l.open, func(o *client) bool { return o == c })
}

// Close closes the connection.
func (c *client) Close() error {
	c.clients.mu.Lock()
	c.clients.remove(c)
	c.clients.mu.Unlock()
	return c.UnixConn.Close()
}

// stream notes that a stream was opened, or has ended.
func (c *client) stream(opened int) {
	c.clients.mu.Lock()
	defer c.clients.mu.Unlock()
	c.streams += opened
}
