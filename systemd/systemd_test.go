// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/leak"
	"github.com/metalplug/metalplug/systemd"
)

// manager listens in place of the service manager.
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

// notifyMax is the size of the service manager's buffer for a message (NOTIFY_BUFFER_MAX in systemd's src/core/manager.c).
const notifyMax = 4096

func received(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	buf := make([]byte, notifyMax)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

func TestNotify(t *testing.T) {
	c := manager(t)
	for want, send := range map[string]func() error{
		"READY=1":         systemd.Ready,
		"STOPPING=1":      systemd.Stopping,
		"WATCHDOG=1":      systemd.Alive,
		"RELOADING=1\nMO": systemd.Reloading,
		"STATUS=fine":     func() error { return systemd.Status("fine") },
		"STATUS=a ? b ££": func() error { return systemd.Status("a \xff\nb " + strings.Repeat("£", 3000)) },
	} {
		if err := send(); err != nil {
			t.Fatal(err)
		}
		if got := received(t, c); !strings.HasPrefix(got, want) || len(got) == notifyMax {
			t.Errorf("received %d bytes, %.100q, want %q", len(got), got, want)
		}
	}
}

// The service manager receives a copy of the descriptor, with its name.
func TestStore(t *testing.T) {
	c := manager(t)
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := systemd.Store("held-x", f); err != nil {
		t.Fatal(err)
	}
	text, rights := make([]byte, 4096), make([]byte, 4096)
	n, size, _, _, err := c.ReadMsgUnix(text, rights)
	if err != nil || string(text[:n]) != "FDSTORE=1\nFDNAME=held-x" {
		t.Fatalf("received %q, %v", text[:n], err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:size])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("%d descriptors, %v", len(fds), err)
	}
	stored := os.NewFile(uintptr(fds[0]), "stored")
	defer stored.Close()
	a, err := f.Stat()
	b, err2 := stored.Stat()
	if err != nil || err2 != nil || !os.SameFile(a, b) {
		t.Errorf("another file was stored: %v, %v", err, err2)
	}
	if err := systemd.Remove("held-x"); err != nil {
		t.Fatal(err)
	}
	if got := received(t, c); got != "FDSTOREREMOVE=1\nFDNAME=held-x" {
		t.Errorf("received %q", got)
	}
	t.Setenv("NOTIFY_SOCKET", "/nonexistent/notify")
	if err := systemd.Store("held-x", f); err == nil {
		t.Error("no error without a service manager behind the socket")
	}
}

func TestNotifyError(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/nonexistent/notify")
	if err := systemd.Ready(); err == nil {
		t.Error("no error without a service manager behind the socket")
	}
}

// TestMachineID compares the result with the output of "systemd-id128 machine-id
// --app-specific=e4e8f52bc2db4d32a250e0a6006546cf".
func TestMachineID(t *testing.T) {
	for machine, want := range map[string]string{
		"3d1219c7c4c5404aaa1f6d2a48adfda4": "cf48992234ae445d9b97943a67cc086c",
		"uninitialized":                    "",
		"3d1219c7":                         "",
		"":                                 "",
	} {
		t.Setenv("METALPLUG_MACHINE_ID", machine)
		if got := systemd.MachineID(); got != want {
			t.Errorf("%q: %q, want %q", machine, got, want)
		}
	}
}

// TestMain checks that no test leaves anything running.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
