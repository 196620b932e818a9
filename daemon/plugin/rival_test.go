// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
	kubelet "github.com/metalplug/metalplug/integration/kubelettest"
)

// connected waits until the endpoint has registered, and the kubelet has its list. Where that takes a second to open its stream,
// the endpoint has registered more than once.
func (b *bench) connected(k *kubelet.Kubelet, registered chan error) {
	b.t.Helper()
	select {
	case err := <-registered:
		if err != nil {
			b.t.Fatal(err)
		}
	case <-time.After(patience):
		b.t.Fatal("not registered")
	}
	b.allocatable(k, 1)
	if err := b.endpoint.Alive(b.t.Context()); err != nil { // no call is under way
		b.t.Fatal(err)
	}
	for len(registered) > 0 {
		<-registered
	}
}

// What the kubelet counts, one comparison after the other, and what the endpoint makes of it: after what time it is to be
// compared again, and whether the endpoint registers again.
func TestCompare(t *testing.T) {
	const soon, contested = time.Second, 10 * time.Second
	id := []string{"node-A-widget"}
	rivals := []string{"node-A-widget", "x"}
	type comparison struct {
		counted []string
		again   time.Duration
		anew    bool // it registers again
	}
	for _, test := range []struct {
		name        string
		comparisons []comparison
	}{
		{"nothing is wrong", []comparison{{id, 0, false}, {id, 0, false}}},
		{"a list is under way", []comparison{{nil, soon, false}, {id, 0, false}}},
		{"a device has just gone", []comparison{{[]string{"y"}, soon, false}, {[]string{"z"}, soon, false}, {id, 0, false}}},
		{"another plugin comes, and ends", []comparison{
			{rivals, soon, false},
			{rivals, contested, false},
			{rivals, contested, false},
			{nil, soon, false},
			{nil, contested, true},
			{id, 0, false},
		}},
		{"it ends, and our next list is there before that is noticed", []comparison{
			{rivals, soon, false}, {rivals, contested, false}, {id, soon, false}, {id, contested, true}, {id, 0, false},
		}},
		{"it has come and ended before anybody compared", []comparison{{nil, soon, false}, {nil, contested, true}, {id, 0, false}}},
		{"once a minute is enough", []comparison{
			{nil, soon, false}, {nil, contested, true}, {nil, soon, false}, {nil, contested, false}, {nil, contested, false}, {id, 0, false},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			registered := make(chan error, 10)
			b := newBench(t, func(e *plugin.Endpoint) {
				e.Tally.Registered = func(_ string, err error) { registered <- err }
			})
			k := b.startKubelet()
			b.connected(k, registered)
			for i, c := range test.comparisons {
				if len(registered) > 0 {
					t.Fatalf("registered again without need before comparison %d", i)
				}
				if again := b.endpoint.Compare(c.counted); again != c.again {
					t.Fatalf("comparison %d: again after %v, want %v", i, again, c.again)
				}
				if c.anew {
					b.connected(k, registered)
				}
			}
			select {
			case <-registered:
				t.Error("registered again without need")
			default:
			}
		})
	}
}

// A registration that is of no use, as where another kubelet's PodResources is asked, is repeated less and less often.
func TestRegistrationOfNoUse(t *testing.T) {
	registered := make(chan error, 10)
	b := newBench(t, func(e *plugin.Endpoint) {
		e.Tally.Registered = func(_ string, err error) { registered <- err }
	})
	k := b.startKubelet()
	b.connected(k, registered)
	anew := func(pause time.Duration) {
		t.Helper()
		b.endpoint.Compare(nil)
		b.endpoint.AgeContest(pause - pause/2)
		if pause > 0 {
			if b.endpoint.Compare(nil); !b.endpoint.Status().Connected {
				t.Errorf("it is not waited for %v", pause)
			}
		}
		b.endpoint.AgeContest(pause / 2)
		b.endpoint.Compare(nil)
		b.connected(k, registered)
	}
	for _, pause := range []time.Duration{0, 1, 2, 4, 8, 16, 32, 60, 60} {
		anew(pause * time.Minute)
	}
	b.endpoint.Compare([]string{"node-A-widget"})
	anew(time.Minute)
}

// Without a healthy device, and without a kubelet, there is nothing to compare.
func TestCompareNothing(t *testing.T) {
	b := newBench(t)
	if again := b.endpoint.Compare(nil); again != 0 {
		t.Errorf("without a kubelet: again after %v", again)
	}
	k := b.startKubelet()
	b.allocatable(k, 1)
	b.machine.Unplug("/sys/devices/virtual/widget/widget0")
	b.allocatable(k, 0)
	if again := b.endpoint.Compare(nil); again != 0 {
		t.Errorf("without a device: again after %v", again)
	}
}

// What was found before one kubelet went does not hold for the next.
func TestCompareWithTheNextKubelet(t *testing.T) {
	registered, changed := make(chan error, 10), make(chan struct{}, 100)
	b := newBench(t, func(e *plugin.Endpoint) {
		e.Tally.Registered = func(_ string, err error) { registered <- err }
		e.Changed = func() { changed <- struct{}{} }
	})
	k := b.startKubelet()
	b.connected(k, registered)
	b.endpoint.Compare(nil)
	k.Stop()
	for b.endpoint.Status().Connected {
		<-changed
	}
	if again := b.endpoint.Compare(nil); again != 0 {
		t.Errorf("without a kubelet: again after %v", again)
	}
	b.connected(b.startKubelet(), registered)
	if again := b.endpoint.Compare(nil); again != time.Second || len(registered) != 0 {
		t.Errorf("with the next one: again after %v, %d more registrations", again, len(registered))
	}
}

func TestForeign(t *testing.T) {
	for _, test := range []struct {
		shares   int
		own      []string
		another  string
		cordoned bool // which the kubelet hears a moment later
	}{
		{0, []string{"node-A-widget"}, "x", false},
		{0, []string{"node-A-widget"}, "x", true},
		{2, []string{"node-A-widget::0", "node-A-widget::1"}, "node-A-widget", false},
	} {
		b := newBench(t, func(e *plugin.Endpoint) { e.Resource.Shares = test.shares })
		if test.cordoned {
			if err := b.endpoint.Inventory.Cordon(t.Context(), "node-A-widget", inventory.Cordon{Reason: "loose"}); err != nil {
				t.Fatal(err)
			}
		}
		if got := b.endpoint.Foreign(test.own); got != "" {
			t.Errorf("%+v: foreign %q, want none", test, got)
		}
		if got := b.endpoint.Foreign(append(test.own, test.another)); got != test.another {
			t.Errorf("%+v: foreign %q", test, got)
		}
	}
}

// That a socket of another plugin comes or goes is a hint. What the kubelet's checkpoint, the files that it is written to, and
// our own sockets do is none, nor what else happens to another's.
func TestDoubts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	watch := watched(t, dir)
	doubts := watch.Doubts()
	ours, _ := watch.Subscribe()
	path := func(name string) string { return filepath.Join(dir, name) }
	touch := func(name string) error {
		return errors.Join(os.WriteFile(path(name), nil, 0o600), os.Remove(path(name)))
	}
	for i, step := range []struct {
		what  string
		do    func() error
		doubt bool
	}{
		{"a temporary file", func() error { return touch(".213") }, false},
		{"the checkpoint", func() error { return touch("kubelet_internal_checkpoint") }, false},
		{"another's is made", func() error { return os.WriteFile(path("gpu.sock"), nil, 0o600) }, true},
		{"another's is written to", func() error { return os.WriteFile(path("gpu.sock"), []byte("x"), 0o600) }, false},
		{"another's gets another mode", func() error { return os.Chmod(path("gpu.sock"), 0o666) }, false},
		{"another's moves away", func() error { return os.Rename(path("gpu.sock"), dir+".gpu.sock") }, true},
		{"another's moves in", func() error { return os.Rename(dir+".gpu.sock", path("gpu.sock")) }, true},
		{"another's goes", func() error { return os.Remove(path("gpu.sock")) }, true},
	} {
		last := path(fmt.Sprintf("mp-%d.sock", i)) // one event, so that no hint is left for the next step
		if err := errors.Join(step.do(), os.Mkdir(last, 0o700)); err != nil {
			t.Fatal(err)
		}
		<-ours // all that came before has been seen
		if got, stirred := len(doubts) > 0, watch.Stirred(); got != step.doubt || stirred != step.doubt {
			t.Errorf("%s: doubt %v, stirred %v, want %v", step.what, got, stirred, step.doubt)
		}
		for len(doubts) > 0 {
			<-doubts
		}
	}
}

// watched watches a directory until the test ends.
func watched(t *testing.T, dir string) *plugin.Watch {
	t.Helper()
	w := &plugin.Watch{Dir: dir, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(context.Background())
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- w.Run(ctx, func() { close(started) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-started
	return w
}

// Another directory may have come with another's socket in it.
func TestDoubtsAboutAnotherDirectory(t *testing.T) {
	b := newBench(t)
	next := b.dir + ".next"
	if err := os.Mkdir(next, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(next, "gpu.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	doubts := b.endpoint.Watch.Doubts()
	if b.endpoint.Watch.Others() {
		t.Error("another plugin at first")
	}
	if err := errors.Join(os.Rename(b.dir, b.dir+".old"), os.Rename(next, b.dir)); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(b.dir + ".old")
	<-doubts
	if !b.endpoint.Watch.Others() {
		t.Error("no other plugin in the next directory")
	}
}

// What is no socket, as what is left of a plugin's log, is no plugin.
func TestOthers(t *testing.T) {
	dir := t.TempDir()
	w := plugin.Watch{Dir: dir}
	for _, name := range []string{"kubelet.sock", "mp-0123-456.sock", "gpu.sock"} {
		if w.Others() {
			t.Errorf("another plugin before %s", name)
		}
		if err := os.WriteFile(filepath.Join(dir, "x"+name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mknod(filepath.Join(dir, name), unix.S_IFSOCK|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	if !w.Others() {
		t.Error("no other plugin in the end")
	}
}
