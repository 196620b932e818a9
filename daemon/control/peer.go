// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// clients is a listener on a unix socket. The address of each client is its uid, as the kernel noted it when the client
// connected (SO_PEERCRED, unix(7)): a client cannot claim to be another, and one that has dropped privileges since is the
// one it was. It is empty where the kernel does not tell.
//
// A user has a bounded number of connections. A new one is always let in, and the oldest of the same user is closed for it. So
// no user that may read keeps root from a change. With PrivateUsers=yes all users but root have one uid (user_namespaces(7)).
type clients struct {
	net.Listener

	mu   sync.Mutex
	open map[string][]*clientConn // by uid, the oldest first
}

// Accept waits for the next client.
func (l *clients) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	client := &clientConn{Conn: c, clients: l, uid: uidOf(c)}
	if oldest := l.add(client); oldest != nil {
		oldest.Close()
	}
	return client, nil
}

// uidOf returns the uid of the process that has connected, or "".
func uidOf(c net.Conn) (uid string) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ""
	}
	if raw, err := u.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				uid = strconv.FormatUint(uint64(peer.Uid), 10)
			}
		})
	}
	return uid
}

// add notes a client and returns the one to close for it, or nil.
func (l *clients) add(c *clientConn) (oldest *clientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = make(map[string][]*clientConn)
	}
	if all := l.open[c.uid]; len(all) >= connections {
		oldest = all[0]
	}
	l.open[c.uid] = append(l.open[c.uid], c)
	return oldest
}

type clientConn struct {
	net.Conn
	clients *clients
	uid     string
}

// RemoteAddr returns the uid, which net/http gives to a request as its address.
func (c *clientConn) RemoteAddr() net.Addr { return &net.UnixAddr{Name: c.uid, Net: "unix"} }

// Close closes the connection.
func (c *clientConn) Close() error {
	l := c.clients
	l.mu.Lock()
	l.open[c.uid] = slices.DeleteFunc(l.open[c.uid], func(o *clientConn) bool { return o == c })
	if len(l.open[c.uid]) == 0 {
		delete(l.open, c.uid)
	}
	l.mu.Unlock()
	return c.Conn.Close()
}
