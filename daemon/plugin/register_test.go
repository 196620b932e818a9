// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// hungUp is what the error of another than the kubelet begins with.
const hungUp = "hung up, or speaks another protocol"

// TestWhoIsNotTheKubelet: whatever listens there, and whoever is quicker, it is said in one way.
func TestWhoIsNotTheKubelet(t *testing.T) {
	for name, speak := range map[string]func(net.Conn) error{
		"hangs up at once":   func(net.Conn) error { return nil },
		"hangs up when told": func(c net.Conn) error { _, err := c.Read(make([]byte, 10)); return err },
		"speaks first":       func(c net.Conn) error { _, err := io.WriteString(c, "SSH-2.0-x\r\n"); return err },
		"speaks HTTP/1.1": func(c net.Conn) error {
			_, err := c.Read(make([]byte, 1000))
			_, wrong := io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\nbad")
			return errors.Join(err, wrong)
		},
		"speaks HTTP/2": func(c net.Conn) error {
			_, err := c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) // settings
			_, wrong := c.Read(make([]byte, 1000))
			return errors.Join(err, wrong)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("unix", filepath.Join(t.TempDir(), kubeletSocket))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			spoken := make(chan error, 1)
			go func() {
				c, err := l.Accept()
				if err == nil {
					err = speak(c)
					c.Close()
				}
				spoken <- err
			}()
			conn, err := net.Dial("unix", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			if err := alone(t).callRegister(t.Context(), conn); err == nil || !strings.HasPrefix(err.Error(), hungUp) {
				t.Errorf("%v, want %s", err, hungUp)
			}
			if err := <-spoken; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestWhoIsSilent: one that accepts and says nothing.
func TestWhoIsSilent(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), kubeletSocket), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	e := alone(t)
	if err := e.callRegister(t.Context(), conn); err == nil || status.Code(errors.Unwrap(err)) != codes.DeadlineExceeded {
		t.Errorf("%v", err)
	}
}

// alone is an endpoint that does not run, for a test that takes its steps itself.
func alone(t *testing.T) *Endpoint {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	e := &Endpoint{Resource: Resource{Name: "example.org/widget"}, Dir: t.TempDir(), Watch: &Watch{Log: log}, Log: log}
	if err := e.prepare(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.server.Stop()
		e.socket.drop()
	})
	return e
}
