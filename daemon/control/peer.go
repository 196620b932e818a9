// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// identified is a listener on a unix socket. The address of each client is its uid, as the kernel noted it when the client
// connected (SO_PEERCRED, unix(7)): a client cannot claim to be another, and one that has dropped privileges since is the
// one it was. It is empty where the kernel does not tell, and that of the network where the listener is for one.
type identified struct{ net.Listener }

// Accept waits for the next client.
func (l identified) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	u, ok := c.(*net.UnixConn)
	if err != nil || !ok {
		return c, err
	}
	client := clientConn{Conn: c}
	if raw, err := u.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				client.uid = strconv.FormatUint(uint64(peer.Uid), 10)
			}
		})
	}
	return client, nil
}

type clientConn struct {
	net.Conn
	uid string
}

// RemoteAddr returns the uid, which net/http gives to a request as its address.
func (c clientConn) RemoteAddr() net.Addr { return &net.UnixAddr{Name: c.uid, Net: "unix"} }
