// SPDX-License-Identifier: Apache-2.0

package exchange_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/integration/leak"
	"github.com/metalplug/metalplug/integration/need"
)

// TestMain makes the test binary act as one of these programs if it was started under the name of that program.
func TestMain(m *testing.M) {
	answers := map[string]exchange.Answer{
		"echo": func(_ context.Context, _ int, request []byte) []byte {
			fmt.Fprintln(os.Stderr, "echo answers")
			return append([]byte("answer to "), request...)
		},
		"talker": func(context.Context, int, []byte) []byte { return make([]byte, exchange.MessageSize+1) },
		"sleeper": func(ctx context.Context, _ int, _ []byte) []byte { // blocks until the client has ended
			<-ctx.Done()
			return nil
		},
	}
	name := filepath.Base(os.Args[0])
	answer, ok := answers[name]
	if !ok {
		os.Exit(leak.Main(m))
	}
	os.Exit(exchange.Main(name, "is for tests.\n", os.Args[1:], func() error { return exchange.Serve(answer) }))
}

// program creates a link to the test binary in the directory of the test binary, where Direct looks first. It returns the
// name of the link.
func program(t *testing.T, name string) string {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(filepath.Dir(own), name)
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(link) })
	return name
}

func TestAskOfAChild(t *testing.T) {
	p := exchange.Peer{Program: program(t, "echo"), Socket: exchange.Direct}
	for _, request := range []string{"a question", strings.Repeat("x", exchange.MessageSize-len("answer to "))} {
		answer, err := p.Ask(t.Context(), func() []byte { return []byte(request) })
		if err != nil || string(answer) != "answer to "+request {
			t.Errorf("Ask(%.20q…) = %.30q…, %v", request, answer, err)
		}
	}
}

func TestAskErrors(t *testing.T) {
	program(t, "echo")
	program(t, "talker")
	missing := filepath.Join(t.TempDir(), "no.sock")
	for _, c := range []struct {
		name    string
		peer    exchange.Peer
		request string
		want    string
	}{
		{"no socket", exchange.Peer{Program: "metalplug-reset", Socket: missing}, "x", "connect to " + missing + ": no such file or directory; check that this is the socket of metalplug-reset.socket, and start the unit: systemctl start metalplug-reset.socket"},
		{"no program", exchange.Peer{Program: "missing", Socket: exchange.Direct}, "x", "find missing: the program is neither in"},
		{"a request too long", exchange.Peer{Program: "echo", Socket: exchange.Direct}, strings.Repeat("x", exchange.MessageSize+1), "call echo: message is too long: 65537 bytes"},
		{"an answer too long", exchange.Peer{Program: "talker", Socket: exchange.Direct}, "x", "call talker: peer closed the connection without an answer"},
		{"nothing asked", exchange.Peer{Program: "echo", Socket: exchange.Direct}, "", "call echo: peer closed the connection without an answer"},
		{"a path too long", exchange.Peer{Program: "echo", Socket: "/" + strings.Repeat("x", 200)}, "x", "invalid argument"},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer, err := c.peer.Ask(t.Context(), func() []byte { return []byte(c.request) })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Ask = %.30q, %v; want an error with %q", answer, err, c.want)
			}
		})
	}
}

// TestByHand starts a program manually, without a request, and reads the description that it prints.
func TestByHand(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(filepath.Dir(own), program(t, "echo"))
	for _, c := range []struct {
		args           []string
		stdout, stderr string
		code           int
	}{
		{[]string{"--help"}, "echo is for tests.\n", "", 0},
		{[]string{"-h"}, "echo is for tests.\n", "", 0},
		{[]string{"now"}, "", "echo: unexpected argument: \"now\"\nSee 'echo --help'.\n", 2},
		{nil, "", "echo: standard input is not a socket, so there is no request\necho is for tests.\n", 1},
	} {
		var stdout, stderr strings.Builder
		command := exec.Command(path, c.args...)
		command.Stdout, command.Stderr = &stdout, &stderr
		_ = command.Run() // the test checks its exit code
		if code := command.ProcessState.ExitCode(); code != c.code || stdout.String() != c.stdout || stderr.String() != c.stderr {
			t.Errorf("%q: exit %d, %q, %q", c.args, code, stdout.String(), stderr.String())
		}
	}
}

func TestAskEndsWithItsContext(t *testing.T) {
	p := exchange.Peer{Program: program(t, "sleeper"), Socket: exchange.Direct}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := p.Ask(ctx, func() []byte { return []byte("x") })
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Ask = %v, want that it was cancelled", err)
	}
}

// serveEcho starts the program "echo" with a connection as its standard input, like the service manager. It returns the output
// when the program has ended.
func serveEcho(t *testing.T, fd int) (output string, err error) {
	own, err := os.Executable()
	if err != nil {
		return "", err
	}
	connection := os.NewFile(uintptr(fd), "connection")
	defer connection.Close()
	echo := exec.CommandContext(t.Context(), own)
	echo.Args[0], echo.Stdin = "echo", connection
	text, err := echo.CombinedOutput()
	return string(text), err
}

func TestAskOverASocketWithAName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listener)
	if err := errors.Join(unix.Bind(listener, &unix.SockaddrUnix{Name: path}), unix.Listen(listener, 1)); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if err == nil {
			_, err = serveEcho(t, fd)
		}
		result <- err
	}()
	answer, err := exchange.Peer{Program: "echo", Socket: path}.Ask(t.Context(), func() []byte { return []byte("hello") })
	if err = errors.Join(err, <-result); err != nil || string(answer) != "answer to hello" {
		t.Errorf("answer is %q, %v", answer, err)
	}
}

// If the peer was killed before the program has begun, the program does not begin. The next run of the peer may have sent the same
// request again.
func TestServeAfterPeerEnded(t *testing.T) {
	ends := pairOf(t, os.Geteuid())
	if err := errors.Join(unix.Sendto(ends[0], []byte("x"), 0, nil), unix.Close(ends[0])); err != nil {
		t.Fatal(err)
	}
	if output, err := serveEcho(t, ends[1]); err != nil || output != "" {
		t.Errorf("echo prints %q, %v", output, err)
	}
}

func TestServeRefusesForeignPeers(t *testing.T) {
	if os.Geteuid() != 0 {
		need.Lacks(t, "root", "only root can be somebody else")
	}
	ends := pairOf(t, 65534)
	defer unix.Close(ends[0])
	output, err := serveEcho(t, ends[1])
	if err == nil || !strings.Contains(output, "uid 65534") || !strings.Contains(output, exchange.ErrForeign.Error()) {
		t.Errorf("echo says %q, %v, want %v", output, err, exchange.ErrForeign)
	}
	if n, err := unix.Read(ends[0], make([]byte, 100)); n > 0 {
		t.Errorf("there is an answer, %v", err)
	}
}

// pairOf returns a pair of sockets that a given user created, according to the kernel.
func pairOf(t *testing.T, uid int) (ends [2]int) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, because the thread has another user now and must end with this function
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
		if errno != 0 {
			done <- errno
			return
		}
		var err error
		ends, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return ends
}

// TestActivatedPeer checks that no request is sent if another process has replaced systemd's socket with its own.
func TestActivatedPeer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listener)
	if err := errors.Join(unix.Bind(listener, &unix.SockaddrUnix{Name: path}), unix.Listen(listener, 1)); err != nil {
		t.Fatal(err)
	}
	_, err = exchange.Peer{Program: "upper", Socket: path, Activated: true}.Ask(t.Context(), func() []byte { return []byte("x") })
	if !errors.Is(err, exchange.ErrForeign) || !strings.Contains(err.Error(), "connect to "+path+": process ") {
		t.Errorf("Ask = %v, want %v", err, exchange.ErrForeign)
	}
}
