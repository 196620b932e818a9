// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peerKey is the key of the peer in the context of a request.
type peerKey struct{}

// withPeer keeps who is at the other end, as the kernel noted when the client connected (SO_PEERCRED, unix(7)): nobody
// can claim to be somebody else, and who has dropped privileges since is who it was. A connection over a network has
// nobody.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if counted, ok := c.(*counted); ok {
		c = counted.Conn
	}
	peer, err := peerOf(c)
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, peer)
}

// peerOf asks the kernel who connected.
func peerOf(c net.Conn) (peer *unix.Ucred, err error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("ask for the peer: %T is no unix socket", c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("ask for the peer: %w", err)
	}
	if controlErr := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); controlErr != nil {
		err = controlErr
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the peer: %w", err)
	}
	return peer, nil
}
