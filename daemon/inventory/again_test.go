// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/udev/udevtest"
)

// stateFiles returns what is in the files of a state directory.
func stateFiles(t *testing.T, state string) [2]string {
	t.Helper()
	identities, err := os.ReadFile(filepath.Join(state, "identities.json"))
	cordons, cordonsErr := os.ReadFile(filepath.Join(state, "cordons.json"))
	if err := errors.Join(err, cordonsErr); err != nil {
		t.Fatal(err)
	}
	return [2]string{string(identities), string(cordons)}
}

// cordonedBefore starts an inventory that has a state directory with a cordon from the last run.
func cordonedBefore(t *testing.T) (r *running, state string) {
	t.Helper()
	state = filepath.Join(t.TempDir(), "state")
	m := udevtest.New(t, widget("w0", "A"))
	r = start(t, m, state)
	if err := r.Cordon(t.Context(), cordonedWidget, inventory.Cordon{Reason: "loose"}); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.stop = func() {}
	return start(t, m, state), state
}

// TestRemovedFilesAreWrittenAgain: what was removed beneath the daemon is written from memory, and nothing else is.
func TestRemovedFilesAreWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, state := cordonedBefore(t)
		clock.Pass(time.Second) // what is to be saved after the start is
		before := stateFiles(t, state)
		rewritten := func(when string, want ...string) {
			t.Helper()
			if got, err := r.Rewrite(t.Context()); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %q, %v, want %q", when, got, err, want)
			}
		}
		rewritten("nothing is removed")
		if err := os.RemoveAll(state); err != nil {
			t.Fatal(err)
		}
		rewritten("all is removed", "identities.json", "cordons.json")
		if got := stateFiles(t, state); got != before {
			t.Errorf("%q, want %q", got, before)
		}
		rewritten("all is there again")
		if err := os.Remove(filepath.Join(state, "cordons.json")); err != nil {
			t.Fatal(err)
		}
		rewritten("the cordons are removed", "cordons.json")
	})
}

// TestRemovedFilesAreWrittenAtTheStop: though nothing has changed, and nobody has asked for it.
func TestRemovedFilesAreWrittenAtTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, state := cordonedBefore(t)
		clock.Pass(time.Second) // what is to be saved after the start is
		before := stateFiles(t, state)
		if err := os.RemoveAll(state); err != nil {
			t.Fatal(err)
		}
		r.stop()
		r.stop = func() {}
		if got := stateFiles(t, state); got != before {
			t.Errorf("%q, want %q", got, before)
		}
	})
}

// TestOlderStateIsPutBack: what the daemon knows is worth more than what somebody puts in its place, which is kept beside.
func TestOlderStateIsPutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := filepath.Join(t.TempDir(), "state")
		m := udevtest.New(t, diskOf(7))
		r := start(t, m, state, tenants(true, false))
		if err := errors.Join(r.Cordon(t.Context(), diskID, inventory.Cordon{Reason: "loose"}), uncordon(r, diskID)); err != nil {
			t.Fatal(err)
		}
		clock.Pass(time.Second)
		older := stateFiles(t, state)
		released(t, r)
		if err := errors.Join(r.Cordon(t.Context(), diskID, inventory.Cordon{Reason: "loose"}), os.RemoveAll(state), os.Mkdir(state, 0o700),
			os.WriteFile(filepath.Join(state, "identities.json"), []byte(older[0]), 0o600),
			os.WriteFile(filepath.Join(state, "cordons.json"), []byte(older[1]), 0o600)); err != nil {
			t.Fatal(err)
		}
		if got, err := r.Rewrite(t.Context()); err != nil || !slices.Equal(got, []string{"identities.json", "cordons.json"}) {
			t.Errorf("%q, %v", got, err)
		}
		for n, file := range []string{"identities.json", "cordons.json"} {
			if beside, err := os.ReadFile(filepath.Join(state, file+".replaced")); err != nil || string(beside) != older[n] {
				t.Errorf("%s is not kept beside: %q, %v", file, beside, err)
			}
		}
		r.stop()
		r.stop = func() {}
		r = start(t, m, state, tenants(true, false))
		quarantined(t, r, nvmeResource)
		if got := r.standing(diskID); !got.cordoned {
			t.Errorf("%+v", got)
		}
	})
}

func uncordon(r *running, id string) error {
	_, err := r.Uncordon(r.t.Context(), id)
	return err
}

// TestStateIsAFile: where nothing can be kept at all it is told what a restart forgets.
func TestStateIsAFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := filepath.Join(t.TempDir(), "state")
		r := start(t, udevtest.New(t, diskOf(7)), state, tenants(true, false))
		released(t, r)
		if err := errors.Join(r.Cordon(t.Context(), diskID, inventory.Cordon{Reason: "loose"}), os.RemoveAll(state), os.WriteFile(state, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		_, err := r.Rewrite(t.Context())
		for _, want := range []string{"to be erased, which is to be done by hand then: " + diskID, "cordon these again after a restart: " + diskID} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q in it", err, want)
			}
		}
		if r.Store.Unkept() == nil || r.Store.UnkeptCordons() == nil {
			t.Error("it counts as kept")
		}
	})
}

// TestNothingIsRewrittenThatNeverWas: no file is made for what was never kept.
func TestNothingIsRewrittenThatNeverWas(t *testing.T) {
	state := t.TempDir()
	r := start(t, udevtest.New(t, ""), state)
	if got, err := r.Rewrite(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("%q, %v", got, err)
	}
	r.stop()
	r.stop = func() {}
	if files, err := os.ReadDir(state); err != nil || len(files) > 0 {
		t.Errorf("%v, %v", files, err)
	}
	r = start(t, udevtest.New(t, widget("w0", "A")), "")
	if got, err := r.Rewrite(t.Context()); err != nil || got != nil {
		t.Errorf("without a state directory: %q, %v", got, err)
	}
}

// TestUnkeptCordonsAreTriedAgain: what cannot be written is told of until it is.
func TestUnkeptCordonsAreTriedAgain(t *testing.T) {
	for name, spoil := range map[string]func(file string) error{
		"removed": os.Remove,
		"damaged": func(file string) error { return os.Truncate(file, 1) }, // before a start
	} {
		t.Run(name, func(t *testing.T) {
			r, state := cordonedBefore(t)
			file := filepath.Join(state, "cordons.json")
			r.stop()
			r.stop = func() {}
			if err := errors.Join(spoil(file), os.MkdirAll(filepath.Join(file+".new", "in the way"), 0o700)); err != nil {
				t.Fatal(err)
			}
			r = start(t, r.machine, state)
			if files, err := r.Rewrite(t.Context()); err == nil || len(files) > 0 || r.Store.UnkeptCordons() == nil {
				t.Errorf("%q, %v, %v", files, err, r.Store.UnkeptCordons())
			}
			if err := os.RemoveAll(file + ".new"); err != nil {
				t.Fatal(err)
			}
			if files, err := r.Rewrite(t.Context()); err != nil || !slices.Contains(files, "cordons.json") || r.Store.UnkeptCordons() != nil {
				t.Errorf("%q, %v, %v", files, err, r.Store.UnkeptCordons())
			}
		})
	}
}

// A class that a reload brings in is polled like one that was there at the start.
func TestClassOfAReloadIsPolled(t *testing.T) {
	every := device.NVMe.Every
	device.NVMe.Every = time.Millisecond
	m := udevtest.New(t, blank(1, "0011", ""))
	r := start(t, m, "", func(o *inventory.Options) { o.Rules = rules[:1] })
	t.Cleanup(func() { // after the inventory has stopped
		r.stop()
		r.stop = func() {}
		device.NVMe.Every = every
	})
	<-r.SetRules(rules, nil)
	healthy := func(want bool) func(*inventory.Snapshot) bool {
		return func(s *inventory.Snapshot) bool {
			devices := s.Offer(nvmeResource).Devices
			return len(devices) == 1 && devices[0].Healthy == want
		}
	}
	r.until("the drive", healthy(true))
	state := filepath.Join(m.Root(), "sys/devices/pci0000:00/0000:00:01.0/nvme/nvme1/state")
	if err := os.WriteFile(state, []byte("dead\n"), 0o644); err != nil { // of which no event tells
		t.Fatal(err)
	}
	r.until("its end", healthy(false))
}
