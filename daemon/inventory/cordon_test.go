// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/integration/udevtest"
	"github.com/metalplug/metalplug/udev"
)

const cordonedWidget = "node-A-w"

// standing has those fields of a status that a cordon affects.
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
	if err := r.Cordon(t.Context(), cordonedWidget, api.Cordon{Reason: "fan is loud"}); err != nil {
		t.Fatal(err)
	}
	cordoned := standing{cordoned: true, reason: "cordoned: fan is loud"}
	check("cordoned", cordoned)
	if err := r.Cordon(t.Context(), cordonedWidget, api.Cordon{Reason: "to be replaced"}); err != nil {
		t.Fatal(err)
	}
	if err := r.Cordon(t.Context(), cordonedWidget, api.Cordon{Reason: api.Unexplained}); err != nil {
		t.Fatal(err)
	}
	check("cordoned for another reason, then for none", standing{cordoned: true, reason: "cordoned: to be replaced"})
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
	if err := r.Cordon(t.Context(), cordonedWidget, api.Cordon{Reason: "loose"}); err != nil {
		t.Fatal(err)
	}
	r.end()
	r = start(t, udevtest.New(t, ""), state)
	if got, want := r.standing(cordonedWidget), (standing{false, true, "cordoned: loose; not found since metalplugd started"}); got != want {
		t.Errorf("without the hardware: %+v, want %+v", got, want)
	}
	r.end()
	r = start(t, udevtest.New(t, widget("w1", "A")), state)
	if got, want := r.standing(cordonedWidget), (standing{false, true, "cordoned: loose"}); got != want {
		t.Errorf("in another place: %+v, want %+v", got, want)
	}
}

// TestCordonOperator checks that a cordon has the same operator and time after a restart. They change only when another
// operator repeats the cordon.
func TestCordonOperator(t *testing.T) {
	state := t.TempDir()
	of := func(r *running) *api.Cordon {
		snapshot, _ := r.Snapshot()
		return snapshot.Find(cordonedWidget).Cordon
	}
	again := func(r *running) *running {
		r.end()
		return start(t, udevtest.New(t, widget("w0", "A")), state)
	}
	r := start(t, udevtest.New(t, widget("w0", "A")), state)
	ann := api.Cordon{Reason: "loose", User: "root", Login: "ann", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	bob := ann
	bob.UID, bob.User, bob.Login, bob.Since = 1000, "bob", "bob", ann.Since.Add(time.Hour)
	for _, c := range []api.Cordon{ann, bob} {
		if err := r.Cordon(t.Context(), cordonedWidget, c); err != nil {
			t.Fatal(err)
		}
		r.waitSnapshot("the cordon", func(s *inventory.Snapshot) bool { return s.Find(cordonedWidget).Cordon.Same(&c) })
		if r = again(r); !of(r).Same(&c) {
			t.Errorf("after a restart %+v, want %+v", of(r), c)
		}
	}
	if _, err := r.Uncordon(t.Context(), cordonedWidget); err != nil || of(r) != nil {
		t.Errorf("uncordoned: %+v, %v", of(r), err)
	}
}

func TestEqualCordons(t *testing.T) {
	a := api.Cordon{Reason: "x", UID: 1, User: "u", Login: "l", Since: time.Unix(1, 0)}
	for name, c := range map[string]struct {
		change func(*api.Cordon)
		same   bool
	}{
		"all":          {func(*api.Cordon) {}, true},
		"another zone": {func(c *api.Cordon) { c.Since = c.Since.In(time.FixedZone("", 3600)) }, true},
		"the time":     {func(c *api.Cordon) { c.Since = time.Unix(2, 0) }, false},
		"the reason":   {func(c *api.Cordon) { c.Reason = "y" }, false},
		"the user":     {func(c *api.Cordon) { c.UID = 2 }, false},
		"the login":    {func(c *api.Cordon) { c.Login = "m" }, false},
	} {
		b := a
		c.change(&b)
		if a.Same(&b) != c.same || b.Same(&a) != c.same {
			t.Errorf("%s: %v, want %v", name, a.Same(&b), c.same)
		}
	}
	if none := (*api.Cordon)(nil); !none.Same(nil) || none.Same(&a) || a.Same(nil) {
		t.Error("none is taken for one")
	}
}

func TestCordonRefused(t *testing.T) {
	state := t.TempDir()
	r := start(t, udevtest.New(t, widget("w0", "A")), state)
	if err := r.Cordon(t.Context(), "node-B-w", api.Cordon{Reason: "x"}); !errors.Is(err, inventory.ErrUnknownDevice) {
		t.Errorf("unknown device: %v", err)
	}
	if _, err := r.Uncordon(t.Context(), "node-B-w"); !errors.Is(err, inventory.ErrUnknownDevice) {
		t.Errorf("unknown device: %v", err)
	}
	block(t, state)
	if err := r.Cordon(t.Context(), cordonedWidget, api.Cordon{Reason: "x"}); err == nil {
		t.Error("no error though it cannot be kept")
	}
	if got, want := r.standing(cordonedWidget), (standing{healthy: true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	r.end()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := r.Cordon(ctx, cordonedWidget, api.Cordon{Reason: "x"}); err == nil {
		t.Error("no error after the end")
	}
}

// TestCordonAtTheStart cordons one device after the state was lost. The other devices must stay cordoned, because an
// operator may have cordoned them before.
func TestCordonAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := t.TempDir()
		if err := os.WriteFile(filepath.Join(state, "state.json"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		m := udevtest.New(t, widget("w0", "A")+widget("w1", "B")+blank(0, "S0", ""))
		answer := make(chan struct{}) // delays the inspection of a disk, and so the moment at which the inventory is ready
		r := begin(t, m, state, onlyDisks, settledSoon, func(o *inventory.Options) {
			o.Rules = append(rules, o.Rules...)
			o.Host.Touch.Probe = func(context.Context, device.Target, bool) (device.Report, error) {
				<-answer
				return device.Report{}, nil
			}
		})
		synctest.Wait() // all devices have been found now
		select {
		case <-r.Ready():
			t.Error("it is ready already")
		default:
		}
		if err := r.Cordon(t.Context(), cordonedWidget, api.Cordon{Reason: "mine"}); err != nil {
			t.Fatal(err)
		}
		close(answer)
		r.end()
		r = start(t, m, state, settledSoon)
		if !r.standing("node-B-w").cordoned {
			t.Error("the other one, which may have been cordoned, is offered")
		}
	})
}

func TestCounts(t *testing.T) {
	m := udevtest.New(t, widget("w0", "A"))
	r := start(t, m, "")
	if got := r.Counts(); got != (api.Counts{}) {
		t.Errorf("at first %+v", got)
	}
	m.Send(udev.Event{Action: udev.Mounts})
	m.Send(udev.Event{Action: udev.Overflow})
	m.Plug(widget("w1", "B"))
	r.waitSnapshot("B", func(s *inventory.Snapshot) bool { return s.Find("node-B-w") != nil })
	got := r.Counts()
	if got.Events != 1 || got.Overflows != 1 || got.LastEvent.IsZero() {
		t.Errorf("%+v", got)
	}
}
