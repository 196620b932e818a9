// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"

	"github.com/metalplug/metalplug/directory"
	"github.com/metalplug/metalplug/internal/liveness"
)

// Watch tells endpoints when something happened in the kubelet's directory that may concern them: kubelet.sock or one
// of our sockets came or went, or the directory itself did. It is only a hint; who gets it looks for itself.
type Watch struct {
	Dir string // the kubelet's device plugin directory; may be missing, may be replaced
	Log *slog.Logger
	// Stir is called when another plugin's socket may have come or gone, and when the kubelet has written its checkpoint, as it
	// does after each list (kubernetes v1.36 pkg/kubelet/cm/devicemanager, manager.go, genericDeviceUpdateCallback). It must not
	// block; may be nil.
	Stir func()

	probe   liveness.Probe
	mu      sync.Mutex
	hints   map[chan struct{}]bool
	watcher *directory.Watch // nil until Run

	arming    sync.Mutex // held by Rearm
	unwatched string     // what it has logged last
}

// Subscribe returns a channel on which a hint waits, and a function that ends that.
func (w *Watch) Subscribe() (hints <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hints == nil {
		w.hints = make(map[chan struct{}]bool)
	}
	w.hints[c] = true
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.hints, c)
	}
}

// Run watches until ctx ends; started is called when nothing can be missed any more.
func (w *Watch) Run(ctx context.Context, started func()) error {
	watcher, err := directory.Open(w.Dir)
	if err != nil {
		return err
	}
	defer watcher.Close()
	w.mu.Lock()
	w.watcher = watcher
	w.mu.Unlock()
	w.Rearm()
	started()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-watcher.Events:
			if !ok {
				return fmt.Errorf("watch %s: the watch has ended", w.Dir)
			}
			w.event(e)
		case err, ok := <-watcher.Errors:
			if !ok {
				return fmt.Errorf("watch %s: the watch has ended", w.Dir)
			}
			w.Log.Debug("kubelet directory watch", "err", err) // an overflow, mostly: look at everything
			w.Rearm()
			w.hint()
			w.stir()
		case answer := <-w.probe.Asked():
			answer()
		}
	}
}

// Alive returns once Run, which is running, has gone round, or with the error of ctx.
func (w *Watch) Alive(ctx context.Context) error { return w.probe.Alive(ctx, "watch of "+w.Dir) }

func (w *Watch) event(e directory.Event) {
	switch {
	case w.watcher.Itself(e): // it, or a directory above it, came or went
		w.Rearm()
		w.hint()
		w.stir()
	case filepath.Dir(e.Name) != w.Dir:
	case isSocketName(filepath.Base(e.Name)):
		w.hint()
	case isOther(filepath.Base(e.Name)) && directory.Moved(e):
		w.stir()
	}
}

// isSocketName tells whether a file of that name in the kubelet's directory is of interest.
func isSocketName(name string) bool {
	return name == kubeletSocket || strings.HasPrefix(name, socketPrefix)
}

// isOther reports whether a file of that name in the kubelet's directory, which is not ours, may be another plugin's socket or
// the checkpoint: it is not what the checkpoint is written to (kubernetes v1.36 pkg/kubelet/util/store, tmpPrefix).
func isOther(name string) bool { return !strings.HasPrefix(name, ".") }

func (w *Watch) stir() {
	if w.Stir != nil {
		w.Stir()
	}
}

// Hint lets every endpoint look at how things stand. It does not block.
func (w *Watch) Hint() { w.hint() }

func (w *Watch) hint() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.hints {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Rearm watches the directory, whichever is there now, and the nearest one above it that exists, so that it is noticed
// when a missing one is made. That it cannot is logged once: each attempt at a socket asks for it.
func (w *Watch) Rearm() {
	w.mu.Lock()
	watcher := w.watcher
	w.mu.Unlock()
	if watcher == nil {
		return
	}
	if complaint := w.rearm(watcher); complaint != "" {
		w.Log.Warn("kubelet directory not watched", "err", complaint)
	}
}

// rearm is Rearm; it returns what is to be logged, which may take its time. One that asks later knows of it.
func (w *Watch) rearm(watcher *directory.Watch) (complaint string) {
	w.arming.Lock()
	defer w.arming.Unlock()
	last := w.unwatched
	w.unwatched = ""
	if err := watcher.Rearm(); err != nil {
		w.unwatched = err.Error()
	}
	if w.unwatched == last {
		return ""
	}
	return w.unwatched
}
