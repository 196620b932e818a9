// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/internal/fsutil"
)

const (
	// kubeletSocket is the name of the kubelet's registration socket in its device plugin directory
	// (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1, constants.go).
	kubeletSocket = "kubelet.sock"
	// socketPrefix is the prefix of metalplug's socket names.
	socketPrefix = "mp-"
)

// socketName returns the name of a resource's socket. The name is short, contains only simple characters, and is
// different after each start.
func socketName(resource string, start time.Time) string {
	return socketPrefix + resourceHash(resource) + "-" + strconv.FormatInt(start.UnixMicro(), 36) + ".sock"
}

// ownName matches the names of metalplug's sockets, but not similar names used by another plugin.
var ownName = regexp.MustCompile(`^` + socketPrefix + `[0-9a-f]{8}-[0-9a-z]+\.sock$`)

func resourceHash(resource string) string {
	sum := sha256.Sum256([]byte(resource))
	return hex.EncodeToString(sum[:4])
}

// identity distinguishes files with the same name, even if the file system reuses an inode number.
type identity struct {
	device, inode uint64
	changed       syscall.Timespec
}

// socketIdentity returns the identity of the socket at a path, or the zero identity if there is no socket.
func socketIdentity(path string) identity { return identityOf(path, syscall.S_IFSOCK) }

// identityOf returns the identity of the file at a path, or the zero identity unless the file has the given type, such as
// [syscall.S_IFREG].
func identityOf(path string, kind uint32) identity {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil || st.Mode&syscall.S_IFMT != kind {
		return identity{}
	}
	return identity{device: st.Dev, inode: st.Ino, changed: st.Ctim}
}

// sameFile reports whether a and b identify the same file, even if the file's attributes have changed. sameFile returns false if
// both are zero.
func (a identity) sameFile(b identity) bool {
	return a.device == b.device && a.inode == b.inode && a.inode != 0
}

// socket is the endpoint's socket in the kubelet's directory. Run owns it.
type socket struct {
	path     string
	listener *net.UnixListener // nil until it is created
	own      identity          // identity of the socket that the listener created
}

// ensure creates the socket if it does not exist. The path never changes, because the kubelet expects the socket there. ensure
// returns the new listener, or nil if the socket exists.
func (s *socket) ensure() (made *net.UnixListener, err error) {
	if s.listener != nil && socketIdentity(s.path).sameFile(s.own) {
		return nil, nil
	}
	s.drop()
	err = s.listen()
	return s.listener, err
}

// listen creates a socket that only its owner can access. Closing the listener does not remove the file, because the file
// may belong to another process by then.
func (s *socket) listen() error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.path, fsutil.Cause(err))
	}
	l.SetUnlinkOnClose(false)
	s.listener, s.own = l, socketIdentity(s.path)
	if err := os.Chmod(s.path, 0o600); err != nil {
		s.drop()
		return fmt.Errorf("listen on %s: %w", s.path, fsutil.Cause(err))
	}
	return nil
}

// drop closes the listener, and removes the socket file if it still belongs to this endpoint. The file cannot become another
// process's socket between the check and the removal, because no process can bind a socket to the path of an existing file.
func (s *socket) drop() {
	if s.listener == nil {
		return
	}
	s.listener.Close()
	if socketIdentity(s.path).sameFile(s.own) {
		os.Remove(s.path)
	}
	s.listener = nil
}

// removeStale removes the sockets that earlier processes left behind for a resource. A socket that accepts connections belongs to
// a running process and is not removed. The lock on the directory does not reveal that process if the directory was created or
// replaced after the process had started.
func removeStale(dir, resource string) {
	names, _ := fs.Glob(os.DirFS(dir), socketPrefix+resourceHash(resource)+"-*.sock") // Glob fails only for an invalid pattern
	for _, name := range names {
		path := filepath.Join(dir, name)
		if c, err := net.Dial("unix", path); err == nil {
			c.Close()
		} else if errors.Is(err, unix.ECONNREFUSED) {
			os.Remove(path)
		}
	}
}
