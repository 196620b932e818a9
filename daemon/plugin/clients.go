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

// clients is a listener that bounds the connections, and with them our descriptors. A new client is always let in, since it may be
// the kubelet: the oldest one that is not the kubelet is closed for it.
type clients struct {
	*net.UnixListener
	isKubelet func(*client) bool
	log       *slog.Logger

	mu   sync.Mutex
	open []*client // the oldest first
	full bool      // which was logged
}

// client is a connection to our socket.
type client struct {
	*net.UnixConn
	pid     int32 // of the process that connected
	clients *clients
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
		if oldest := l.add(c); oldest != nil {
			oldest.Close()
		}
		return c, nil
	}
}

// add notes a client and returns the one to close for it, or nil.
func (l *clients) add(c *client) (oldest *client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, c)
	if len(l.open) <= maxClients {
		return nil
	}
	i := slices.IndexFunc(l.open, func(c *client) bool { return !l.isKubelet(c) })
	if !l.full {
		l.full = true
		l.log.Warn("too many clients", "detail", fmt.Sprintf("process %d was disconnected from the plugin socket: ss -xp names the others", l.open[i].pid))
	}
	return l.open[i]
}

// Close closes the connection.
func (c *client) Close() error {
	c.clients.mu.Lock()
	c.clients.open = slices.DeleteFunc(c.clients.open, func(o *client) bool { return o == c })
	c.clients.mu.Unlock()
	return c.UnixConn.Close()
}
