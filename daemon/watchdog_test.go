// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon"
)

// jam is a log that blocks a goroutine which logs a certain message.
type jam struct {
	slog.Handler
	at    string
	freed chan struct{}
	happens
}

// happens receives the notices to the service manager and the log lines about progress, in order.
type happens chan string

func (j *jam) Enabled(context.Context, slog.Level) bool { return true }

func (j *jam) WithAttrs([]slog.Attr) slog.Handler { return j }

func (j *jam) Handle(_ context.Context, r slog.Record) error {
	switch r.Message {
	case j.at:
		<-j.freed
	case "no progress":
		r.Attrs(func(a slog.Attr) bool {
			j.happens <- r.Message + ": " + a.Value.String()
			return true
		})
	}
	return nil
}

// manager simulates the service manager with a watchdog.
func manager(t *testing.T, dir string) happens {
	t.Helper()
	path := filepath.Join(dir, "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "400000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	told := make(happens, 10_000)
	var reading sync.WaitGroup
	reading.Go(func() {
		buffer := make([]byte, 4096)
		for {
			n, err := c.Read(buffer)
			if err != nil {
				return
			}
			told <- string(buffer[:n])
		}
	})
	t.Cleanup(func() {
		c.Close()
		reading.Wait()
	})
	return told
}

// await waits for the event want. It fails if the event never comes first. never may be "".
func (h happens) await(t *testing.T, want, never string) {
	t.Helper()
	limit, last := time.After(patience), ""
	for {
		select {
		case got := <-h:
			last = got
			switch {
			case strings.Contains(got, want):
				return
			case never != "" && strings.Contains(got, never):
				t.Fatalf("%q before %q", got, want)
			}
		case <-limit:
			t.Fatalf("no %q, at last %q", want, last)
		}
	}
}

// TestWatchdog checks, for each loop, that a stuck loop stops the notices to the service manager and is named in the
// log.
func TestWatchdog(t *testing.T) {
	for _, c := range []struct {
		name, at, loop string
		jam            func(s *story) error
	}{
		{"inventory", "device added", "the inventory", func(s *story) error { return s.plug([]string{"widget", "late", "L"}) }},
		{"watch", "kubelet directory not watched", "the watch of", func(s *story) error {
			err := os.WriteFile(s.path("other"), nil, 0o600)
			return errors.Join(err, unix.Renameat2(unix.AT_FDCWD, s.path("other"), unix.AT_FDCWD, s.path("k"), unix.RENAME_EXCHANGE))
		}},
		{"endpoint", "endpoint not registered", "the endpoint of example.org/widget", func(s *story) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.path("k/plugins/kubelet.sock"), Net: "unix"})
			if err == nil {
				l.SetUnlinkOnClose(false)
				l.Close() // simulates a crash of the kubelet
			}
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) { jammed(t, c.at, c.loop, c.jam) })
	}
}

func jammed(t *testing.T, at, loop string, begin func(*story) error) {
	s := newStory(t)
	c, err := s.load()
	if err != nil {
		t.Fatal(err)
	}
	c.Paths.DevicePlugins = s.path("k/plugins")
	none := c.Resources[0]
	none.Name, none.Match, none.Optional = "example.org/none", map[string]string{"SUBSYSTEM": "none"}, true // the endpoint waits for its first device
	c.Resources = append(c.Resources, none)
	if err := os.MkdirAll(c.Paths.DevicePlugins, 0o755); err != nil {
		t.Fatal(err)
	}
	log := &jam{at: at, freed: make(chan struct{}), happens: manager(t, s.dir)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- daemon.Run(ctx, daemon.Options{Config: c, Log: slog.New(log)}) }()
	free := sync.OnceFunc(func() { close(log.freed) })
	defer func() {
		free()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("daemon: %v", err)
		}
	}()
	const alive = "WATCHDOG=1"
	log.await(t, "READY=1", "")
	log.await(t, alive, "")
	if err := begin(s); err != nil {
		t.Fatal(err)
	}
	log.await(t, "no progress: ", "")
	log.await(t, loop, "") // earlier notices have arrived by now
	log.await(t, loop, alive)
	free()
	log.await(t, alive, "")
}
