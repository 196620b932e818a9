// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
)

// peerCredentials is a gRPC transport without encryption that asks the kernel who the peer is, and refuses everyone but
// uid 0 and our own uid.
type peerCredentials struct{}

// peerInfo is who the peer of a connection is.
type peerInfo struct {
	credentials.CommonAuthInfo
	client *client // nil: the peer is the one who listens
}

// AuthType names the way in which the peer was found out.
func (peerInfo) AuthType() string { return "SO_PEERCRED" }

// ClientHandshake lets everything pass: the connection that a client uses was checked by the one who made it.
func (peerCredentials) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c, peerInfo{}, nil
}

// ServerHandshake refuses foreign peers.
func (peerCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	peer, err := peerOf(c)
	if err != nil {
		return nil, nil, err
	}
	if peer.Uid != 0 && peer.Uid != uint32(os.Geteuid()) {
		return nil, nil, fmt.Errorf("accept connection: peer is uid %d (pid %d), only uid 0 may connect", peer.Uid, peer.Pid)
	}
	level := credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity} // it never leaves the machine
	from, _ := c.(*client)
	return c, peerInfo{CommonAuthInfo: level, client: from}, nil
}

// Info describes the transport.
func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "SO_PEERCRED"}
}

// Clone returns the same: there is nothing in it.
func (p peerCredentials) Clone() credentials.TransportCredentials { return p }

// OverrideServerName does nothing: there are no server names.
func (peerCredentials) OverrideServerName(string) error { return nil }

// peerOf asks the kernel who is at the other end: the process that connected, or for a client the one that listens.
func peerOf(c net.Conn) (*unix.Ucred, error) {
	u, ok := c.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("ask for the peer: %T is no unix socket", c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("ask for the peer: %w", err)
	}
	var peer *unix.Ucred
	var sockErr error
	if err := raw.Control(func(fd uintptr) {
		peer, sockErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, fmt.Errorf("ask for the peer: %w", err)
	}
	if sockErr != nil {
		return nil, fmt.Errorf("ask for the peer: %w", sockErr)
	}
	return peer, nil
}
