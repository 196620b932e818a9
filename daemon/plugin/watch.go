// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/directory"
	"github.com/metalplug/metalplug/internal/liveness"
)

// Watch notifies endpoints of events in the kubelet's directory that may affect them. These events are the creation or removal of
// kubelet.sock, of one of metalplug's sockets, of another plugin's socket, or of the directory itself. A notification is only a
// hint, so each endpoint checks its own state.
type Watch struct {
	Dir string // the kubelet's device plugin directory, which may be missing or replaced
	Log *slog.Logger

	probe   liveness.Probe
	watcher *directory.Watch // owned by Run
	mu      sync.Mutex
	hints   map[chan struct{}]bool
	peers   peers
}

// Subscribe returns a channel that receives hints, and a function that ends the subscription.
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

// Run watches the kubelet's directory until ctx ends. Run calls started() when it can no longer miss an event.
func (w *Watch) Run(ctx context.Context, started func()) (err error) {
	if w.watcher, err = directory.Open(w.Dir); err != nil {
		return err
	}
	defer w.watcher.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	complaint := w.rearm("")
	w.mu.Lock()
	w.peers.ctx, w.peers.known = ctx, make(map[socketFile]*neighbor)
	w.updatePlugins()
	w.mu.Unlock()
	started()
	for {
		var again <-chan time.Time
		if complaint != "" {
			again = time.After(checkInterval)
		}
		ok, lost := true, false
		select {
		case <-ctx.Done():
			return nil
		case e, more := <-w.watcher.Events:
			ok, lost = more, more && w.event(e)
		case err, more := <-w.watcher.Errors: // an error usually means that the event queue has overflowed
			ok, lost = more, true
			w.Log.Debug("kubelet directory watch", "err", err)
		case <-again:
			lost = true
		case <-w.probe.Asked():
		}
		if !ok {
			return fmt.Errorf("watch %s: the watch has ended", w.Dir)
		}
		if lost {
			complaint = w.rearm(complaint)
			w.hint()
			w.directoryChanged()
		}
	}
}

// rearm watches the directory and its nearest existing parent, so that creating a missing directory causes an event. The result
// "complaint" says why the directories cannot be watched, or is empty. rearm logs the reason unless it is the same as the
// parameter last.
func (w *Watch) rearm(last string) (complaint string) {
	if err := w.watcher.Rearm(); err != nil {
		complaint = err.Error()
	}
	if complaint != "" && complaint != last {
		w.Log.Warn("kubelet directory not watched", "err", complaint)
	}
	return complaint
}

// Alive waits until Run has made progress, and then returns nil. If ctx ends first, Alive returns the error of ctx.
func (w *Watch) Alive(ctx context.Context) error { return w.probe.Alive(ctx, "watch of "+w.Dir) }

// event handles an event, and reports whether the kubelet's directory or one of its parents was created or removed.
func (w *Watch) event(e directory.Event) (itself bool) {
	switch {
	case w.watcher.Itself(e):
		return true
	case filepath.Dir(e.Name) != w.Dir:
	case isSocketName(filepath.Base(e.Name)):
		w.hint()
	case isOther(filepath.Base(e.Name)) && directory.Moved(e):
		w.directoryChanged()
	}
	return false
}

// isSocketName reports whether a file with that name is kubelet.sock or may be one of metalplug's sockets.
func isSocketName(name string) bool { return name == kubeletSocket || ownName.MatchString(name) }

// isOther reports whether a file in the kubelet's directory may be another plugin's socket or the checkpoint. The caller
// has already checked that it is not one of metalplug's sockets. The temporary files of the checkpoint are excluded
// (kubernetes v1.36 pkg/kubelet/util/store, tmpPrefix).
func isOther(name string) bool { return !strings.HasPrefix(name, ".") }

// hint makes every endpoint check its state. hint does not block.
func (w *Watch) hint() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hintLocked()
}

// hintLocked is like hint, for a caller that holds mu.
func (w *Watch) hintLocked() {
	for c := range w.hints {
		liveness.Poke(c)
	}
}
