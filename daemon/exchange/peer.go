// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Direct may be set as [Peer.Socket] instead of a path, to run the program as a child process.
const Direct = "direct"

// libexec is the directory where the packages install the programs (packaging/install.sh).
const libexec = "/usr/libexec/metalplug"

// configVariable is the environment variable that passes the configuration file's name to a child process. No systemd unit sets
// it.
const configVariable = "METALPLUG_CONFIG"

// ConfigFile returns the name of the configuration file that the parent process has passed. If the parent has passed none,
// ConfigFile returns the parameter "standard".
func ConfigFile(standard string) string {
	if file := os.Getenv(configVariable); file != "" {
		return file
	}
	return standard
}

// Peer is a program that answers one request and exits. The methods are safe for concurrent use.
type Peer struct {
	Program string // name of the program, such as "metalplug-reset"
	Socket  string // socket of the service manager, or [Direct]
	Config  string // configuration file for a program that runs as a child process, or "" for its default
	// Activated makes Ask reject a socket if the listening process is not the service manager. metalplugd can replace the sockets
	// in its directory, so a helper must not trust answers from any other process.
	Activated bool
	// Slots limits the number of simultaneous requests to the channel's capacity. If Slots is nil, there is no limit, and the
	// service manager may refuse a connection because of MaxConnections= (systemd.socket(5)).
	Slots chan struct{}
}

// Call sends a request to a program and decodes the answer. Call blocks as long as [Peer.Ask] does.
func Call[A any](ctx context.Context, p Peer, request func() []byte) (answer A, err error) {
	message, err := p.Ask(ctx, request)
	if err != nil {
		return answer, err
	}
	if answer, err = Decode[A](message); err != nil {
		err = fmt.Errorf("read the answer of %s: %w", p.Program, err)
	}
	return answer, err
}

// Ask sends a request and returns the answer. Ask calls the function request while the program starts. Ask blocks until the
// answer arrives or ctx ends. If ctx ends, Ask disconnects, but the program may still finish its work.
func (p Peer) Ask(ctx context.Context, request func() []byte) ([]byte, error) {
	if p.Slots != nil {
		select {
		case p.Slots <- struct{}{}:
			defer func() { <-p.Slots }()
		case <-ctx.Done():
			return nil, fmt.Errorf("call %s: wait for %d other requests: %w", p.Program, cap(p.Slots), ctx.Err())
		}
	}
	fd, err := p.connect()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		unix.Shutdown(fd, unix.SHUT_RDWR) // after this, a blocked read returns
		close(ended)
	})
	var answer []byte
	if err = send(fd, request()); err == nil {
		answer, err = receive(fd)
	}
	if !stop() {
		<-ended // otherwise, the shutdown could affect a new descriptor with the same number
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", p.Program, err)
	}
	return answer, nil
}

// connect connects to the program and returns the socket's descriptor, which is in blocking mode.
func (p Peer) connect() (fd int, err error) {
	if p.Socket == Direct {
		return p.start()
	}
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("connect to %s: %w", p.Socket, err)
	}
	if err = unix.Connect(fd, &unix.SockaddrUnix{Name: p.Socket}); err != nil {
		err = fmt.Errorf("%w; check that this is the socket of %[2]s.socket, and start the unit: systemctl start %[2]s.socket", err, p.Program)
	} else if p.Activated {
		// The kernel reports the process that called listen(2) as the peer (unix_listen in net/unix/af_unix.c).
		var peer *unix.Ucred
		if peer, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil && peer.Pid != 1 {
			err = fmt.Errorf("process %d listens on the socket: %w; systemctl restart metalplugd", peer.Pid, ErrForeign)
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("connect to %s: %w", p.Socket, err)
	}
	return fd, nil
}

// start runs the program as a child process with one end of a new socket as its standard input, and returns the other end.
func (p Peer) start() (fd int, err error) {
	path, err := p.find()
	if err != nil {
		return -1, err
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("start %s: %w", path, err)
	}
	childEnd := os.NewFile(uintptr(ends[1]), "socket")
	defer childEnd.Close()
	child := exec.Command(path)
	child.Stdin, child.Stderr, child.Env = childEnd, os.Stderr, []string{}
	if p.Config != "" {
		child.Env = append(child.Env, configVariable+"="+p.Config)
	}
	if err := child.Start(); err != nil {
		unix.Close(ends[0])
		return -1, fmt.Errorf("start %s: %w", path, err)
	}
	go child.Wait() // the program reports errors in its answer
	return ends[0], nil
}

// find returns the program's path. find first looks in the running program's directory, because a build puts all programs into
// one directory. Then find looks where the packages install the programs.
func (p Peer) find() (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", p.Program, err)
	}
	for _, dir := range [...]string{filepath.Dir(own), libexec} {
		path := filepath.Join(dir, p.Program)
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return path, err
		}
	}
	return "", fmt.Errorf("find %s: the program is neither in %s nor in %s", p.Program, filepath.Dir(own), libexec)
}
