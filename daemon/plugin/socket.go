// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
)

const (
	// kubeletSocket is the name of the kubelet's registration socket in its device plugin directory
	// (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1, constants.go).
	kubeletSocket = "kubelet.sock"
	// socketPrefix is what the names of our sockets begin with.
	socketPrefix = "mp-"
	// socketPathSize is the longest path of a unix socket: sun_path has 108 bytes with the final NUL (unix(7)).
	socketPathSize = 107
)

// socketName returns the name of a resource's socket: short, plain, and another one at each start.
func socketName(resource string, start time.Time) string {
	return socketPrefix + resourceHash(resource) + "-" + strconv.FormatInt(start.UnixMicro(), 36) + ".sock"
}

func resourceHash(resource string) string {
	sum := sha256.Sum256([]byte(resource))
	return hex.EncodeToString(sum[:4])
}

// identity tells one file from another that has the same name, also where the file system uses an inode number again.
type identity struct {
	device, inode uint64
	changed       syscall.Timespec
}

// socketIdentity returns the identity of a socket; the zero identity if there is none at that path.
func socketIdentity(path string) identity {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFSOCK {
		return identity{}
	}
	return identity{device: st.Dev, inode: st.Ino, changed: st.Ctim}
}

// sameFile tells whether a and b are the same file, whatever happened to it meanwhile. Two that are missing are not.
func (a identity) sameFile(b identity) bool {
	return a.device == b.device && a.inode == b.inode && a.inode != 0
}

// listen makes the socket at path, for its owner alone. The file stays when the listener is closed: by then it may be
// another's.
func listen(path string) (*net.UnixListener, identity, error) {
	if len(path) > socketPathSize {
		return nil, identity{}, fmt.Errorf("listen on %s: the path has %d bytes, at most %d are possible: "+
			"set a shorter paths.device_plugins", path, len(path), socketPathSize)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, identity{}, fmt.Errorf("listen on %s: %w", path, plainCause(err))
	}
	l.SetUnlinkOnClose(false)
	own := socketIdentity(path)
	if err := os.Chmod(path, 0o600); err != nil {
		unlisten(l, path, own)
		return nil, identity{}, fmt.Errorf("listen on %s: %w", path, plainCause(err))
	}
	return l, own, nil
}

// unlisten closes the listener and removes its socket if that is still the one at path: while it is there, nobody can
// listen at path again.
func unlisten(l *net.UnixListener, path string, own identity) {
	l.Close()
	if socketIdentity(path).sameFile(own) {
		os.Remove(path)
	}
}

// plainCause drops what the net and os packages put around an errno: the caller names the operation and the path.
func plainCause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// removeStale removes the sockets that earlier starts have left behind for a resource. One that answers is another's.
func removeStale(dir, resource string) {
	files, _ := os.ReadDir(dir) // where it is missing, nothing was left behind
	for _, file := range files {
		if !strings.HasPrefix(file.Name(), socketPrefix+resourceHash(resource)+"-") || !strings.HasSuffix(file.Name(), ".sock") {
			continue
		}
		path := filepath.Join(dir, file.Name())
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
			continue
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			os.Remove(path)
		}
	}
}

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
