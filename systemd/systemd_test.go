// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/journal"
)

// manager listens in the place of the service manager.
func manager(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return c
}

func received(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

func TestNotifier(t *testing.T) {
	c := manager(t)
	var n Notifier
	for want, send := range map[string]func() error{
		"READY=1":         n.Ready,
		"STOPPING=1":      n.Stopping,
		"WATCHDOG=1":      n.Alive,
		"RELOADING=1\nMO": n.Reloading,
		"STATUS=fine":     func() error { return n.Status("fine") },
	} {
		if err := send(); err != nil {
			t.Fatal(err)
		}
		if got := received(t, c); !strings.HasPrefix(got, want) {
			t.Errorf("received %q, want %q", got, want)
		}
	}
}

func TestQuietNotifierSaysNothing(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/nonexistent/notify")
	if err := (Notifier{Quiet: true}).Ready(); err != nil {
		t.Error(err)
	}
	if err := (Notifier{}).Ready(); err == nil {
		t.Error("no error without a service manager behind the socket")
	}
}

func TestNoServiceManagerIsNoError(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := (Notifier{}).Ready(); err != nil {
		t.Error(err)
	}
	if interval, err := (Notifier{}).WatchdogInterval(); interval != 0 || err != nil {
		t.Errorf("interval %v, %v", interval, err)
	}
}

func TestLevels(t *testing.T) {
	for name, want := range map[string]journal.Priority{
		"debug": journal.PriDebug, "info": journal.PriInfo, "notice": journal.PriNotice,
		"warn": journal.PriWarning, "error": journal.PriErr,
	} {
		level, err := ParseLevel(name)
		if err != nil || priority(level) != want {
			t.Errorf("%s: priority %v, %v, want %v", name, priority(level), err, want)
		}
	}
	if _, err := ParseLevel("loud"); err == nil {
		t.Error("there is a level loud")
	}
}
