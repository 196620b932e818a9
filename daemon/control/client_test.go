// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/metalplug/metalplug/daemon/api"
)

// serveText starts a server that answers each connection with this text and disconnects.
func serveText(t *testing.T, text string) api.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "mp")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "c.sock"))
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, text)
			c.Close()
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
		os.RemoveAll(dir)
	})
	return api.Client{Socket: filepath.Join(dir, "c.sock")}
}

func TestInconsistentAnswers(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"no HTTP", "220 mail.example.org\r\n", "the connection was closed"},
		{"half an answer", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"id\":", "read the answer of "},
	} {
		t.Run(test.name, func(t *testing.T) {
			var d api.Device
			err := serveText(t, test.text).Get(t.Context(), "/v1/devices/x", &d)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestInterruptedClient(t *testing.T) {
	b := start(t, machine())
	ctx, cancel := context.WithCancel(t.Context())
	body, err := b.Stream(ctx, "/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	cancel()
	if _, err := io.Copy(io.Discard, body); err == nil {
		t.Error("the stream ended as if the daemon had ended it")
	}
	if err := b.Get(ctx, "/v1/status", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

// TestStopDisconnectsClients checks that a client that follows the events does not delay the stop of metalplugd.
func TestStopDisconnectsClients(t *testing.T) {
	b := start(t, machine())
	b.follow()
	b.stop()
	if _, err := os.Lstat(b.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}
