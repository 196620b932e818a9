// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// cgroups is a simulated cgroup v2 of a node with systemd.
type cgroups struct {
	t    *testing.T
	root string
}

func newCgroups(t *testing.T) cgroups {
	t.Helper()
	c := cgroups{t, t.TempDir()}
	c.must(os.Mkdir(filepath.Join(c.root, "system.slice"), 0o755))
	return c
}

func (c cgroups) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// put writes cgroup.events of udevd's unit.
func (c cgroups) put(populated string) {
	c.t.Helper()
	text, file := []byte("populated "+populated+"\nfrozen 0\n"), filepath.Join(c.root, udevdCgroup)
	err := os.WriteFile(file, text, 0o600)
	if errors.Is(err, os.ErrNotExist) { // a cgroup appears with its files
		made := c.t.TempDir()
		c.must(os.WriteFile(filepath.Join(made, filepath.Base(file)), text, 0o600))
		err = os.Symlink(made, filepath.Dir(file))
	}
	c.must(err)
}

// remove removes the cgroup of udevd's unit.
func (c cgroups) remove() {
	c.t.Helper()
	c.must(os.Remove(filepath.Join(c.root, udevdCgroup)))
	c.must(os.Remove(filepath.Join(c.root, filepath.Dir(udevdCgroup))))
}

// watch runs a watch of udevd until the test ends.
func (c cgroups) watch(interval time.Duration) <-chan Event {
	c.t.Helper()
	w, err := openUdevdWatch(c.root)
	c.must(err)
	w.interval = interval
	ctx, cancel := context.WithCancel(context.Background())
	events, done := make(chan Event), make(chan error)
	go func() { done <- w.listen(ctx, events) }()
	c.t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			c.t.Error(err)
		}
		w.close()
	})
	return events
}

// waitMissed waits for a Missed event.
func (c cgroups) waitMissed(events <-chan Event) {
	c.t.Helper()
	select {
	case e := <-events:
		if e.Action != Missed {
			c.t.Errorf("%+v", e)
		}
	case <-time.After(10 * time.Second):
		c.t.Fatal("no event")
	}
}

// While udevd is absent, [Missed] events arrive at intervals, and another one when udevd is back.
func TestUdevdEnds(t *testing.T) {
	for name, end := range map[string]func(cgroups){
		"its cgroup is empty": func(c cgroups) { c.put("0") },
		"its cgroup is gone":  cgroups.remove,
	} {
		t.Run(name, func(t *testing.T) {
			c := newCgroups(t)
			c.put("1")
			events := c.watch(20 * time.Millisecond)
			for range 3 {
				end(c)
				for range 3 {
					c.waitMissed(events)
				}
				c.put("1")
				c.waitMissed(events)
			}
		})
	}
}

// A [Missed] event arrives immediately when udevd ends and when it is back, even if other units start in between.
func TestUdevdRestartsImmediately(t *testing.T) {
	c := newCgroups(t)
	events := c.watch(time.Hour)
	c.waitMissed(events) // udevd is absent, and later changes are noticed
	c.must(os.Mkdir(filepath.Join(c.root, "system.slice", "other.service"), 0o755))
	c.put("1")
	c.waitMissed(events)
	c.put("0")
	c.waitMissed(events)
	c.put("1")
	c.waitMissed(events)
	c.remove()
	c.waitMissed(events)
	c.put("1")
	c.waitMissed(events)
}

// TestUdevdIsRestarted restarts udevd before the watch checks for it.
func TestUdevdIsRestarted(t *testing.T) {
	c := newCgroups(t)
	c.put("1")
	events := c.watch(20 * time.Millisecond)
	limit := time.After(10 * time.Second)
	for { // the watch may not be armed yet
		c.put("0")
		c.put("1")
		select {
		case e := <-events:
			if e.Action != Missed {
				t.Errorf("%+v", e)
			}
			return
		case <-limit:
			t.Fatal("no event")
		default:
		}
	}
}
