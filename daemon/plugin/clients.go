// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/peer"
)

// maxClients is the maximum number of connections to one of our sockets. The kubelet has one connection for its stream,
// and another one while we register (kubernetes v1.36 pkg/kubelet/cm/devicemanager/plugin/v1beta1, client.go and
// handler.go).
const maxClients = 8

// clients is a listener that limits the number of connections, because each connection needs a descriptor. It always accepts
// a new client, which may be the kubelet. If there are too many clients, it disconnects the oldest one that is not the
// kubelet.
type clients struct {
	*net.UnixListener
	isKubelet func(*client) bool
	log       *slog.Logger

	mu   sync.Mutex
	open []*client // sorted by age, oldest first
	full bool      // the log already says that there are too many clients
}

// client is a connection to our socket.
type client struct {
	*net.UnixConn
	pid     int32 // process that connected
	clients *clients
}

// Accept waits for the next client with uid 0 or our own uid. It disconnects other clients.
func (l *clients) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		peer, err := peerOf(conn)
		if err != nil || peer.Uid != 0 && peer.Uid != uint32(os.Geteuid()) {
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

// add adds a client. It returns the client to disconnect instead, or nil.
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
		l.log.Warn("too many clients", "detail", fmt.Sprintf("process %d was disconnected from the plugin socket: ss -xp shows the other clients", l.open[i].pid))
	}
	return l.open[i]
}

// RemoteAddr returns the client itself. gRPC passes it to each call.
func (c *client) RemoteAddr() net.Addr { return c }

// Network returns "unix".
func (c *client) Network() string { return "unix" }

// String returns the process.
func (c *client) String() string { return fmt.Sprintf("process %d", c.pid) }

// clientOf returns the client of the current call, or nil.
func clientOf(ctx context.Context) *client {
	if p, ok := peer.FromContext(ctx); ok {
		c, _ := p.Addr.(*client)
		return c
	}
	return nil
}

// peerOf returns the process at the other end, as recorded by the kernel. For an accepted connection, this is the process
// that connected. For a connection that we made, it is the process that listens.
func peerOf(c *net.UnixConn) (peer *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
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

// Close closes the connection.
func (c *client) Close() error {
	c.clients.mu.Lock()
	c.clients.open = slices.DeleteFunc(c.clients.open, func(o *client) bool { return o == c })
	c.clients.mu.Unlock()
	return c.UnixConn.Close()
}
