// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"net"

	"golang.org/x/sys/unix"
)

// peerKey is the key of the peer in the context of a request.
type peerKey struct{}

// identified is a listener whose connections know the process at the other end, as the kernel noted it when the client
// connected (SO_PEERCRED, unix(7)): a client cannot claim to be another, and one that has dropped privileges since is who
// it was. It is the address of the peer, which survives the wrapping of a connection. Over a network there is none.
type identified struct{ net.Listener }

// Accept waits for the next client.
func (l identified) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if u, ok := c.(*net.UnixConn); ok && err == nil {
		if peer := peerOf(u); peer != nil {
			return peerConn{c, peerAddr{c.RemoteAddr(), peer}}, nil
		}
	}
	return c, err
}

type peerConn struct {
	net.Conn
	addr peerAddr
}

// RemoteAddr returns a [peerAddr].
func (c peerConn) RemoteAddr() net.Addr { return c.addr }

type peerAddr struct {
	net.Addr
	*unix.Ucred
}

// withPeer keeps the peer of a connection in the context of its requests.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if addr, ok := c.RemoteAddr().(peerAddr); ok {
		return context.WithValue(ctx, peerKey{}, addr.Ucred)
	}
	return ctx
}

// peerOf asks the kernel who connected; nil: it does not tell.
func peerOf(u *net.UnixConn) (peer *unix.Ucred) {
	raw, err := u.SyscallConn()
	if err != nil {
		return nil
	}
	_ = raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil {
		return nil
	}
	return peer
}
