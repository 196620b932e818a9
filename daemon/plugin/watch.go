// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
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

	probe   liveness.Probe
	mu      sync.Mutex
	hints   map[chan struct{}]bool
	doubts  chan struct{}    // one slot, see Doubts; nil until somebody asks
	stirred bool             // see Stirred
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

// Doubts returns the channel on which a hint waits when the kubelet may take another plugin, or one that has ended, for ours:
// a socket of another one came or went, or one of ours was registered anew. There is one channel, for one goroutine.
func (w *Watch) Doubts() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.doubts == nil {
		w.doubts = make(chan struct{}, 1)
	}
	return w.doubts
}

// Stirred tells whether a hint of [Watch.Doubts] since the last call was of another plugin, which may take its time, and not
// only of a registration of ours.
func (w *Watch) Stirred() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	stirred := w.stirred
	w.stirred = false
	return stirred
}

// Others tells whether another plugin's socket is in the directory, which may be left over from one that was killed.
func (w *Watch) Others() bool {
	entries, err := os.ReadDir(w.Dir)
	return err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return e.Type() == os.ModeSocket && !isSocketName(e.Name())
	})
}

// Run watches until ctx ends; started is called when nothing can be missed any more. What does not concern a socket, such
// as the kubelet's checkpoint, wakes up Run and nobody else.
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
			w.doubt(true)
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
		w.doubt(true)
	case filepath.Dir(e.Name) != w.Dir:
	case isSocketName(filepath.Base(e.Name)):
		w.hint()
	case isOther(filepath.Base(e.Name)) && directory.Moved(e):
		w.doubt(true)
	}
}

// isSocketName tells whether a file of that name in the kubelet's directory is of interest.
func isSocketName(name string) bool {
	return name == kubeletSocket || strings.HasPrefix(name, socketPrefix)
}

// isOther tells whether a file of that name in the kubelet's directory, which is none of ours, may be another plugin's
// socket: it is not the kubelet's checkpoint, nor what that is written to (kubernetes v1.36 pkg/kubelet/util/store, tmpPrefix).
func isOther(name string) bool { return name != CheckpointFile && !strings.HasPrefix(name, ".") }

// doubt has the hint of Doubts wait, if anybody listens; stirred: it may be of another plugin.
func (w *Watch) doubt(stirred bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stirred = w.stirred || stirred
	select {
	case w.doubts <- struct{}{}:
	default:
	}
}

// Hint has every endpoint look at how things stand.
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
