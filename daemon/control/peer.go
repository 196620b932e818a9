// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// clients is a listener on a unix socket. The address of a client is its uid. The kernel recorded the uid when the
// client connected (SO_PEERCRED, unix(7)). So a client cannot use another uid, and later changes of its uid have no
// effect. The address is empty if the kernel does not report the uid.
//
// The number of connections of each user is limited. A new client is always accepted, and the oldest client of the same user
// is disconnected. So no user with read access can prevent changes by root. With PrivateUsers=yes, metalplugd sees the same
// uid for all users except root (user_namespaces(7)).
type clients struct {
	net.Listener

	mu   sync.Mutex
	open map[string][]*clientConn // keys are uids; the oldest connection is first
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

// uidOf returns the uid of the process that connected, or "".
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

// add adds a client. It returns the client to disconnect, or nil.
func (l *clients) add(c *clientConn) (oldest *clientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = make(map[string][]*clientConn)
	}
	if all := l.open[c.uid]; len(all) >= maxClients {
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

// RemoteAddr returns the uid. net/http uses it as the address of a request.
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
