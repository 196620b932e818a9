// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/systemd"
)

// TestOneNotice checks that the level notice has the right journal priority, although the packages below do not use
// package systemd.
func TestOneNotice(t *testing.T) {
	if inventory.LevelNotice != systemd.LevelNotice {
		t.Errorf("%v and %v", inventory.LevelNotice, systemd.LevelNotice)
	}
}

// TestControlSocketOfTheServiceManager checks that a passed socket is served, and stays when the daemon stops.
func TestControlSocketOfTheServiceManager(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.sock")
	made, err := control.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := made.File()
	if err != nil {
		t.Fatal(err)
	}
	made.SetUnlinkOnClose(false)
	made.Close()
	d := daemon{Options: Options{Sockets: map[string]*os.File{"control": f}, Log: slog.New(slog.DiscardHandler)}}
	var served []string
	serve := d.serveSocket("control", "control socket not served", nil, func(_ context.Context, l net.Listener) error {
		served = append(served, l.Addr().String())
		return l.Close()
	})
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := serve(ctx, func() {}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the service manager's socket is gone: %v", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	d.Sockets["control"] = null
	if err := serve(ctx, func() {}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(served, []string{path}) {
		t.Errorf("served %q, want %q alone", served, path)
	}
}

// TestSocketIsNotPassedOn checks that a daemon that systemd started without the event socket reports how to get it.
func TestSocketIsNotPassedOn(t *testing.T) {
	err := errors.New("address family not supported by protocol")
	const remedy = "systemctl stop metalplugd && systemctl start metalplugd"
	for _, c := range []struct {
		sockets map[string]*os.File
		told    bool
	}{
		{nil, false}, {map[string]*os.File{"control": os.Stdin}, true}, {map[string]*os.File{"uevent": os.Stdin}, false},
	} {
		d := daemon{Options: Options{Sockets: c.sockets}}
		got := d.explainSocket(err)
		if !errors.Is(got, err) || strings.Contains(got.Error(), remedy) != c.told {
			t.Errorf("with %v: %v", c.sockets, got)
		}
	}
}
