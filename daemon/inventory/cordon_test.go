// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/udev"
	"github.com/metalplug/metalplug/udev/udevtest"
)

const cordonedWidget = "node-A-w"

const removedReason = "it was before cordons.json was removed, for a reason that is not known: uncordon it if that is over"

// standing is what of a status a cordon is about.
type standing struct {
	healthy, cordoned bool
	reason            string
}

func (r *running) standing(id string) standing {
	snapshot, _ := r.Snapshot()
	s := snapshot.Find(id)
	if s == nil {
		return standing{}
	}
	return standing{s.Healthy, s.Cordon != nil, s.Reason}
}

func TestCordon(t *testing.T) {
	m := udevtest.New(t, widget("w0", "A"))
	r := start(t, m, t.TempDir())
	check := func(when string, want standing) {
		t.Helper()
		if got := r.standing(cordonedWidget); got != want {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
	check("at first", standing{healthy: true})
	if err := r.Cordon(t.Context(), cordonedWidget, inventory.Cordon{Reason: "fan is loud"}); err != nil {
		t.Fatal(err)
	}
	cordoned := standing{cordoned: true, reason: "cordoned: fan is loud"}
	check("cordoned", cordoned)
	if err := r.Cordon(t.Context(), cordonedWidget, inventory.Cordon{Reason: "to be replaced"}); err != nil {
		t.Fatal(err)
	}
	check("cordoned for another reason", standing{cordoned: true, reason: "cordoned: to be replaced"})
	if _, err := r.Uncordon(t.Context(), cordonedWidget); err != nil {
		t.Fatal(err)
	}
	check("uncordoned", standing{healthy: true})
	if was, err := r.Uncordon(t.Context(), cordonedWidget); err != nil || was {
		t.Errorf("again: %v, %v", was, err)
	}
}

func TestCordonOutlivesRestartAndHardware(t *testing.T) {
	state := t.TempDir()
	m := udevtest.New(t, widget("w0", "A"))
	r := start(t, m, state)
	if err := r.Cordon(t.Context(), cordonedWidget, inventory.Cordon{Reason: "loose"}); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.stop = func() {}
	r = start(t, udevtest.New(t, ""), state)
	if got, want := r.standing(cordonedWidget), (standing{false, true, "cordoned: loose; not seen since metalplug was started"}); got != want {
		t.Errorf("without the hardware: %+v, want %+v", got, want)
	}
	r.stop()
	r.stop = func() {}
	r = start(t, udevtest.New(t, widget("w1", "A")), state)
	if got, want := r.standing(cordonedWidget), (standing{false, true, "cordoned: loose"}); got != want {
		t.Errorf("in another place: %+v, want %+v", got, want)
	}
}

// TestCordonIsSomebodys: who has cordoned a device and when outlives the daemon, and is replaced by who does it again; of
// what the first versions wrote only the reason is known.
func TestCordonIsSomebodys(t *testing.T) {
	state := t.TempDir()
	of := func(r *running) *inventory.Cordon {
		snapshot, _ := r.Snapshot()
		return snapshot.Find(cordonedWidget).Cordon
	}
	again := func(r *running) *running {
		r.stop()
		r.stop = func() {}
		return start(t, udevtest.New(t, widget("w0", "A")), state)
	}
	if err := os.WriteFile(filepath.Join(state, "cordons.json"), []byte(`{"node-A-w":"loose"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, udevtest.New(t, widget("w0", "A")), state)
	if got, want := of(r), (&inventory.Cordon{Reason: "loose"}); !got.Same(want) {
		t.Errorf("of the first versions: %+v, want %+v", got, want)
	}
	ann := inventory.Cordon{Reason: "loose", User: "root", Login: "ann", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	bob := ann
	bob.UID, bob.User, bob.Login, bob.Since = 1000, "bob", "bob", ann.Since.Add(time.Hour)
	for _, c := range []inventory.Cordon{ann, bob} {
		if err := r.Cordon(t.Context(), cordonedWidget, c); err != nil {
			t.Fatal(err)
		}
		r.until("the cordon", func(s *inventory.Snapshot) bool { return s.Find(cordonedWidget).Cordon.Same(&c) })
		if r = again(r); !of(r).Same(&c) {
			t.Errorf("after a restart %+v, want %+v", of(r), c)
		}
	}
	if _, err := r.Uncordon(t.Context(), cordonedWidget); err != nil || of(r) != nil {
		t.Errorf("uncordoned: %+v, %v", of(r), err)
	}
}

func TestCordonsThatAreTheSame(t *testing.T) {
	a := inventory.Cordon{Reason: "x", UID: 1, User: "u", Login: "l", Since: time.Unix(1, 0)}
	for name, c := range map[string]struct {
		change func(*inventory.Cordon)
		same   bool
	}{
		"all":          {func(*inventory.Cordon) {}, true},
		"another zone": {func(c *inventory.Cordon) { c.Since = c.Since.In(time.FixedZone("", 3600)) }, true},
		"the time":     {func(c *inventory.Cordon) { c.Since = time.Unix(2, 0) }, false},
		"the reason":   {func(c *inventory.Cordon) { c.Reason = "y" }, false},
		"the user":     {func(c *inventory.Cordon) { c.UID = 2 }, false},
		"the login":    {func(c *inventory.Cordon) { c.Login = "m" }, false},
	} {
		b := a
		c.change(&b)
		if a.Same(&b) != c.same || b.Same(&a) != c.same {
			t.Errorf("%s: %v, want %v", name, a.Same(&b), c.same)
		}
	}
	if none := (*inventory.Cordon)(nil); !none.Same(nil) || none.Same(&a) || a.Same(nil) {
		t.Error("none is taken for one")
	}
}

func TestCordonRefused(t *testing.T) {
	state := t.TempDir()
	r := start(t, udevtest.New(t, widget("w0", "A")), state)
	if err := r.Cordon(t.Context(), "node-B-w", inventory.Cordon{Reason: "x"}); !errors.Is(err, inventory.ErrUnknownDevice) {
		t.Errorf("unknown device: %v", err)
	}
	if _, err := r.Uncordon(t.Context(), "node-B-w"); !errors.Is(err, inventory.ErrUnknownDevice) {
		t.Errorf("unknown device: %v", err)
	}
	// A directory in the place of the file that is about to be written.
	if err := os.MkdirAll(filepath.Join(state, "cordons.json.new/full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.Cordon(t.Context(), cordonedWidget, inventory.Cordon{Reason: "x"}); err == nil {
		t.Error("no error though it cannot be kept")
	}
	if got, want := r.standing(cordonedWidget), (standing{healthy: true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	r.stop()
	r.stop = func() {}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := r.Cordon(ctx, cordonedWidget, inventory.Cordon{Reason: "x"}); err == nil {
		t.Error("no error after the end")
	}
}

// TestDamagedCordons: whichever device was known may have been cordoned, and is until somebody says otherwise.
func TestDamagedCordons(t *testing.T) {
	for name, spoil := range map[string]func(file string) error{
		"cut off": func(file string) error { return os.WriteFile(file, []byte("{"), 0o600) },
		"empty":   func(file string) error { return os.Truncate(file, 0) },
		"null":    func(file string) error { return os.WriteFile(file, []byte("null"), 0o600) },
		"a directory": func(file string) error {
			return errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "full"), 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			file := filepath.Join(state, "cordons.json")
			r := start(t, udevtest.New(t, widget("w0", "A")), state)
			again := func(hardware string) {
				r.stop()
				r.stop = func() {}
				r = start(t, udevtest.New(t, hardware), state)
			}
			check := func(when string, want standing) {
				t.Helper()
				if got := r.standing(cordonedWidget); got != want {
					t.Errorf("%s: %+v, want %+v", when, got, want)
				}
			}
			if err := r.Cordon(t.Context(), cordonedWidget, inventory.Cordon{Reason: "loose"}); err != nil {
				t.Fatal(err)
			}
			r.stop()
			r.stop = func() {}
			if err := spoil(file); err != nil {
				t.Fatal(err)
			}
			damaged, readErr := os.ReadFile(file)
			again(widget("w0", "A") + widget("w1", "B"))
			presumed := standing{cordoned: true, reason: "cordoned: it may have been before cordons.json was damaged: uncordon it if not"}
			check("damaged", presumed)
			if !r.standing("node-B-w").healthy {
				t.Error("what was not known then is cordoned as well")
			}
			if aside, err := os.ReadFile(file + ".damaged"); readErr == nil && (err != nil || string(aside) != string(damaged)) {
				t.Errorf("it is not kept beside: %q, %v", aside, err)
			}
			again(widget("w0", "A"))
			check("the next time", presumed)
			if readErr != nil { // what is in the way there is for somebody
				return
			}
			if _, err := r.Uncordon(t.Context(), cordonedWidget); err != nil {
				t.Fatal(err)
			}
			again(widget("w0", "A"))
			check("uncordoned", standing{healthy: true})
		})
	}
}

// TestRemovedCordons: what was cordoned is still where the file was removed, or a link leads nowhere, while no daemon ran; what
// was not, or is not any more, is not made so.
func TestRemovedCordons(t *testing.T) {
	remove := func(file string) error { return os.Remove(file) }
	for name, c := range map[string]struct {
		spoil    func(file string) error
		uncordon bool
		want     standing
	}{
		"removed":           {spoil: remove, want: standing{cordoned: true, reason: "cordoned: " + removedReason}},
		"after an uncordon": {spoil: remove, uncordon: true, want: standing{healthy: true}},
		"a link that leads nowhere": {
			spoil: func(file string) error { return errors.Join(os.Remove(file), os.Symlink("nowhere", file)) },
			want:  standing{cordoned: true, reason: "cordoned: " + removedReason},
		},
		// It is written first: so does a crash leave it.
		"says that it is none": {
			spoil: func(file string) error { return os.WriteFile(file, []byte("{}"), 0o600) },
			want:  standing{healthy: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			m := udevtest.New(t, widget("w0", "A")+widget("w1", "B"))
			r := start(t, m, state)
			if err := r.Cordon(t.Context(), cordonedWidget, inventory.Cordon{Reason: "loose"}); err != nil {
				t.Fatal(err)
			}
			if c.uncordon {
				if _, err := r.Uncordon(t.Context(), cordonedWidget); err != nil {
					t.Fatal(err)
				}
			}
			r.stop()
			r.stop = func() {}
			if err := c.spoil(filepath.Join(state, "cordons.json")); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time the file is there again
				r = start(t, m, state)
				if got := r.standing(cordonedWidget); got != c.want {
					t.Errorf("%+v, want %+v", got, c.want)
				}
				if !r.standing("node-B-w").healthy {
					t.Error("what was not cordoned is")
				}
				r.stop()
				r.stop = func() {}
			}
		})
	}
}

// TestAllIsDamaged: where it is not known either which devices there were, all that are there at the start may have been
// cordoned; what comes later was not there to be. What cannot be read is kept beside, and nobody waits for a pipe.
func TestAllIsDamaged(t *testing.T) {
	spoilt := func(file string) error { return os.WriteFile(file, []byte("{"), 0o600) }
	for name, spoil := range map[string]func(file string) error{
		"cut off":   spoilt,
		"pipes":     func(file string) error { return unix.Mkfifo(file, 0o600) },
		"too large": func(file string) error { return errors.Join(spoilt(file), os.Truncate(file, 100<<20)) },
	} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			for _, file := range []string{"identities.json", "cordons.json"} {
				if err := spoil(filepath.Join(state, file)); err != nil {
					t.Fatal(err)
				}
			}
			m := udevtest.New(t, widget("w0", "A"))
			r := start(t, m, state)
			presumed := standing{cordoned: true, reason: "cordoned: it may have been before cordons.json was damaged: uncordon it if not"}
			if got := r.standing(cordonedWidget); got != presumed {
				t.Errorf("%+v, want %+v", got, presumed)
			}
			m.Plug(widget("w1", "B"))
			r.until("B", func(s *inventory.Snapshot) bool { return s.Find("node-B-w") != nil })
			if !r.standing("node-B-w").healthy {
				t.Error("what was not there is cordoned as well")
			}
			if _, err := r.Uncordon(t.Context(), cordonedWidget); err != nil {
				t.Fatal(err)
			}
			r.stop()
			r.stop = func() {}
			for _, file := range []string{"identities.json", "cordons.json"} {
				if _, err := os.Lstat(filepath.Join(state, file+".damaged")); err != nil {
					t.Errorf("%s is not kept beside: %v", file, err)
				}
			}
			r = start(t, m, state)
			if got, want := r.standing(cordonedWidget), (standing{healthy: true}); got != want {
				t.Errorf("the next time: %+v, want %+v", got, want)
			}
		})
	}
}

// TestIdentitiesAreLostAndCordonsMissing: where nothing tells whether any device was cordoned, it is said so, and none is made so.
func TestIdentitiesAreLostAndCordonsMissing(t *testing.T) {
	r, state := cordonedBefore(t)
	r.stop()
	r.stop = func() {}
	if err := errors.Join(os.WriteFile(filepath.Join(state, "identities.json"), []byte("{"), 0o600), os.Remove(filepath.Join(state, "cordons.json"))); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	for n, want := range []bool{true, false} {
		log.Reset()
		r = start(t, r.machine, state, func(o *inventory.Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		if got := r.standing(cordonedWidget); got != (standing{healthy: true}) {
			t.Errorf("%+v", got)
		}
		r.stop()
		r.stop = func() {}
		if got := strings.Contains(log.String(), `level=ERROR msg="cordons not read"`) && strings.Contains(log.String(), "cordon these again"); got != want {
			t.Errorf("start %d: told %v, want %v:\n%s", n, got, want, log.String())
		}
	}
}

// TestCordonAtTheStart: what is presumed of the devices that are found then is not lost with the first that somebody names.
func TestCordonAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := t.TempDir()
		for _, file := range []string{"identities.json", "cordons.json"} {
			if err := os.WriteFile(filepath.Join(state, file), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m := udevtest.New(t, widget("w0", "A")+widget("w1", "B"))
		m.SetSettled(false) // so that it is a while until the inventory is ready
		r := begin(t, m, state, settledSoon)
		synctest.Wait() // the devices are found by now
		select {
		case <-r.Ready():
			t.Error("it is ready already")
		default:
		}
		if err := r.Cordon(t.Context(), cordonedWidget, inventory.Cordon{Reason: "mine"}); err != nil {
			t.Fatal(err)
		}
		r.stop()
		r.stop = func() {}
		r = start(t, m, state, settledSoon)
		if !r.standing("node-B-w").cordoned {
			t.Error("the other one, which may have been cordoned, is offered")
		}
	})
}

// TestClientThatLeaves: what is on disk holds, however soon whoever asked for it has gone.
func TestClientThatLeaves(t *testing.T) {
	state := t.TempDir()
	var leave atomic.Pointer[context.CancelFunc]
	r := start(t, udevtest.New(t, widget("w0", "A")), state, func(o *inventory.Options) {
		o.Store.Owned = func() error { // as it is written, or the identities are
			if cancel := leave.Swap(nil); cancel != nil {
				(*cancel)()
			}
			return nil
		}
	})
	for held := 0; held < 20; {
		if err := r.Cordon(t.Context(), cordonedWidget, inventory.Cordon{Reason: "mine"}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		leave.Store(&cancel)
		_, err := r.Uncordon(ctx, cordonedWidget)
		if err == nil {
			held++
		} else if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if s, current := r.Current(t.Context(), cordonedWidget); current != nil || (s.Cordon == nil) != (err == nil) {
			t.Fatalf("uncordoned with %v: %+v, %v", err, s, current)
		}
		cancel()
	}
}

func TestCounts(t *testing.T) {
	m := udevtest.New(t, widget("w0", "A"))
	r := start(t, m, "")
	if got := r.Counts(); got != (inventory.Counts{}) {
		t.Errorf("at first %+v", got)
	}
	m.Send(udev.Event{Action: udev.Mounts})
	m.Send(udev.Event{Action: udev.Overflow})
	m.Plug(widget("w1", "B"))
	r.until("B", func(s *inventory.Snapshot) bool { return s.Find("node-B-w") != nil })
	got := r.Counts()
	if got.Events != 1 || got.Overflows != 1 || got.LastEvent.IsZero() {
		t.Errorf("%+v", got)
	}
}
