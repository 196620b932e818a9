// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/systemd"
	"github.com/metalplug/metalplug/udev"
)

func TestSaid(t *testing.T) {
	var d daemon
	d.endpoints = &endpoints{}
	c := config.Default()
	dir := t.TempDir()
	t.Chdir(dir)
	c.Files = []string{"/etc/a.toml", "b.toml"} // the second as somebody has typed it
	d.config.Store(&c)
	if got, want := d.configuration(), (control.Configuration{Files: []string{"/etc/a.toml", dir + "/b.toml"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("at first %+v, want %+v", got, want)
	}
	if len(d.rules()) != len(c.Resources) || len(d.resources()) != len(c.Resources) {
		t.Errorf("%d rules and %d resources of %d", len(d.rules()), len(d.resources()), len(c.Resources))
	}
	all := d.resources()
	all[0].Healthy = 7 // they are the caller's
	if d.resources()[0].Healthy != 0 {
		t.Error("what one caller writes another reads")
	}
	d.said.reloaded(nil, errors.New("t.toml:1: nonsense: unknown key"))
	if got := d.configuration(); got.Problem != "t.toml:1: nonsense: unknown key" || got.Reloaded == nil {
		t.Errorf("refused: %+v", got)
	}
	next := c
	next.Files, next.Resources = []string{"/etc/b.toml"}, c.Resources[:1]
	d.config.Store(&next)
	d.said.reloaded(nil, nil)
	if got := d.configuration(); got.Problem != "" || got.Files[0] != "/etc/b.toml" || len(d.resources()) != 1 {
		t.Errorf("reloaded: %+v, %+v", got, d.resources())
	}
}

// TestOneNotice: the parts below do not know systemd, which gives the level its priority in the journal.
func TestOneNotice(t *testing.T) {
	if inventory.LevelNotice != systemd.LevelNotice {
		t.Errorf("%v and %v", inventory.LevelNotice, systemd.LevelNotice)
	}
}

func TestSaidPods(t *testing.T) {
	var d daemon
	d.said.pods(map[string][]plugin.Pod{"d": {{Namespace: "n", Name: "p", Container: "c"}, {Namespace: "n", Name: "q", Container: "c"}}})
	want := map[string][]control.Holder{"d": {{Namespace: "n", Pod: "p", Container: "c"}, {Namespace: "n", Pod: "q", Container: "c"}}}
	if got := d.holders(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	d.said.pods(nil)
	if got := d.holders(); len(got) != 0 {
		t.Errorf("%v, want nobody", got)
	}
}

func TestResourceAsItIsShown(t *testing.T) {
	var d daemon
	d.endpoints = &endpoints{}
	c := config.Default()
	d.config.Store(&c)
	for i, got := range d.resources() {
		r := c.Resources[i]
		want := control.Resource{
			Name: r.Name, Class: r.Class.Name, Shares: 1, Inject: config.InjectNodes, Optional: true,
			Reset: r.Reset.Method, Scrub: config.None, When: config.WhenStart,
		}
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// TestControlSocketOfTheServiceManager: the socket that is passed on is served, and stays when the daemon stops.
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
	d := daemon{Options: Options{Sockets: map[string]*os.File{"control": f}}}
	l, err := d.controlListener()
	if err != nil {
		t.Fatal(err)
	}
	if l.Addr().String() != path {
		t.Errorf("it serves %s, want %s", l.Addr(), path)
	}
	l.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the service manager's socket is gone: %v", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	d.Sockets["control"] = null
	if _, err := d.controlListener(); err == nil {
		t.Error("what is no socket is served")
	}
}

// TestControlSocketOfAnother: a socket that another process serves stays, and one that a dead process left is replaced.
func TestControlSocketOfAnother(t *testing.T) {
	d := daemon{Options: Options{Config: config.Config{Paths: config.Paths{Run: t.TempDir()}}}}
	other, err := control.Listen(filepath.Join(d.Config.Paths.Run, controlSocket))
	if err != nil {
		t.Fatal(err)
	}
	want := "listen on " + other.Addr().String() + ": another process serves it: set another paths.run"
	if _, err := d.controlListener(); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	other.SetUnlinkOnClose(false)
	other.Close()
	l, err := d.controlListener()
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestDroppedOfARecording(t *testing.T) {
	var d daemon
	if got := d.dropped(); got != (udev.Dropped{}) {
		t.Errorf("%+v", got)
	}
}

// TestSocketIsNotPassedOn: who is started by systemd without the socket of events is told how to get it.
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
		got := d.notPassed(err)
		if !errors.Is(got, err) || strings.Contains(got.Error(), remedy) != c.told {
			t.Errorf("with %v: %v", c.sockets, got)
		}
	}
}
