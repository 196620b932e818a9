// SPDX-License-Identifier: Apache-2.0

//go:build cgo && !nolibudev

package udev_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/need"
	"github.com/metalplug/metalplug/udev"
)

var _ udev.Source = (*udev.System)(nil)

func openSystem(t *testing.T, o udev.Options) *udev.System {
	t.Helper()
	s, err := udev.Open(o)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPERM) {
		need.Lacks(t, "root", "no netlink here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestSystemState checks that udevd counts as running if its cgroup has processes, or if systemd does not use cgroup v2.
func TestSystemState(t *testing.T) {
	cgroup := t.TempDir()
	s := openSystem(t, udev.Options{Cgroup: cgroup})
	if !s.Running() {
		t.Error("not running without cgroup v2")
	}
	dir := filepath.Join(cgroup, "system.slice/systemd-udevd.service")
	if err := os.Mkdir(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if s.Running() {
		t.Error("running without udevd")
	}
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "cgroup.events"), []byte("populated 1\nfrozen 0\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if !s.Running() {
		t.Error("not running with udevd")
	}
}

func TestOpenWithAnotherSocket(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := udev.Open(udev.Options{Socket: f}); err == nil {
		t.Error("the event socket is /dev/null")
	}
}

// A container may have /dev/null instead of the kernel log.
func TestSystemGoesOnWithoutTheKernelLog(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	w := newWire(t)
	s := openSystem(t, udev.Options{Socket: w.socket, KernelLog: null})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { w.done <- s.Listen(ctx, w.events) }()
	for limit := time.Now().Add(10 * time.Second); s.KernelLog() == nil && time.Now().Before(limit); {
		runtime.Gosched()
	}
	if err := s.KernelLog(); !errors.Is(err, io.EOF) {
		t.Errorf("KernelLog: %v", err)
	}
	for range 3 {
		w.send(t, groupUdevBit, message("add", "x"))
		for e := range w.events { // mounts and udevd of this host may change during the test
			if e.Action == "add" && e.Device.SysPath == "/sys/devices/x" {
				break
			}
		}
	}
	cancel()
	if err := <-w.done; !errors.Is(err, context.Canceled) {
		t.Errorf("Listen: %v", err)
	}
}
