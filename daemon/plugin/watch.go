// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

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

// Alive waits until Run has made progress, and then returns nil. If ctx ends first, Alive returns ctx's error.
func (w *Watch) Alive(ctx context.Context) error { return w.probe.Alive(ctx, "watch of "+w.Dir) }

// event handles an event, and reports whether the kubelet's directory or one of its parents was created or removed.
func (w *Watch) event(e directory.Event) (itself bool) {
	switch name := filepath.Base(e.Name); {
	case w.watcher.Itself(e):
		return true
	case filepath.Dir(e.Name) != w.Dir:
	case isSocketName(name):
		w.hint()
	// The file may be another plugin's socket or the checkpoint, but not a temporary file of the checkpoint (kubernetes v1.36
	// pkg/kubelet/util/store, tmpPrefix).
	case !strings.HasPrefix(name, ".") && directory.Moved(e):
		w.directoryChanged()
	}
	return false
}

// isSocketName reports whether a file with that name is kubelet.sock or may be one of metalplug's sockets.
func isSocketName(name string) bool { return name == kubeletSocket || ownName.MatchString(name) }

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

// A plugin binds its socket before it listens, so a new socket may refuse connections. metalplugd concludes that a plugin has
// ended after its socket has refused peerTries connections, with peerPause between them.
const (
	peerTries = 10
	peerPause = 10 * time.Millisecond
)

// peers holds the other plugins in the kubelet's directory. A plugin that is killed leaves its socket behind, and no inotify
// event reports its end. Therefore, metalplugd keeps a connection to each plugin open, without making calls on it. The kernel
// closes the connection when the plugin ends (unix_release_sock, net/unix/af_unix.c). The mutex of [Watch] protects peers.
type peers struct {
	ctx    context.Context // context of all connections, or nil before Watch.Run
	known  map[socketFile]*neighbor
	newest int // number of the newest plugin so far
	ended  int // number of plugins that have ended since the start of metalplugd
	events int // number of times that a plugin started, ended or may have sent a list
}

// socketFile identifies a socket. A different file at the same path is a different socket.
type socketFile struct {
	path string
	identity
}

// neighbor is another plugin with a socket in the kubelet's directory.
type neighbor struct {
	number int  // newer plugins have higher numbers
	live   bool // the plugin has not ended
	stop   context.CancelFunc
}

// otherPlugins returns the numbers of the other plugins that are running, sorted from the oldest to the newest. otherPlugins also
// returns how many plugins have ended, and the number of events so far (see [peers]). otherPlugins reads the directory, but does
// not wait for any plugin.
func (w *Watch) otherPlugins() (live []int, ended, events int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.updatePlugins()
	for _, p := range w.peers.known {
		if p.live {
			live = append(live, p.number)
		}
	}
	slices.Sort(live)
	return live, w.peers.ended, w.peers.events
}

// directoryChanged records an event in the kubelet's directory. The event means that the socket of another plugin has appeared or
// disappeared, or that the kubelet may have processed a list from some plugin. The kubelet writes its checkpoint after each list
// (kubernetes v1.36 pkg/kubelet/cm/devicemanager, manager.go, genericDeviceUpdateCallback).
func (w *Watch) directoryChanged() {
	if live, _, _ := w.otherPlugins(); len(live) > 0 {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.recordEvent()
	}
}

// recordEvent records an event. The caller holds mu.
func (w *Watch) recordEvent() {
	w.peers.events++
	w.hintLocked()
}

// updatePlugins compares the sockets in the directory with the known plugins. The caller holds mu.
func (w *Watch) updatePlugins() {
	if w.peers.ctx == nil {
		return
	}
	there := make(map[socketFile]bool)
	entries, _ := os.ReadDir(w.Dir) // a missing directory has no entries
	for _, e := range entries {
		path := filepath.Join(w.Dir, e.Name())
		file := socketFile{path, socketIdentity(path)}
		if there[file] = true; w.peers.known[file] != nil || isSocketName(e.Name()) || file.identity == (identity{}) {
			continue
		}
		ctx, stop := context.WithCancel(w.peers.ctx)
		p := &neighbor{stop: stop}
		w.peers.known[file] = p
		w.setLive(p, true)
		go w.follow(ctx, path, p)
	}
	for file, p := range w.peers.known {
		if !there[file] {
			w.setLive(p, false)
			p.stop()
			delete(w.peers.known, file)
		}
	}
}

// setLive records that a plugin has started or ended. The caller holds mu.
func (w *Watch) setLive(p *neighbor, live bool) {
	switch {
	case live == p.live:
		return
	case live:
		w.peers.newest++
		p.number = w.peers.newest
	default:
		w.peers.ended++
	}
	p.live = live
	w.recordEvent()
}

// follow keeps a connection to a plugin until the plugin or ctx ends.
func (w *Watch) follow(ctx context.Context, path string, p *neighbor) {
	conn, err := net.Dial("unix", path)
	for tries := 1; errors.Is(err, unix.ECONNREFUSED) && tries < peerTries; tries++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(peerPause):
		}
		conn, err = net.Dial("unix", path)
	}
	switch {
	case err == nil:
		conn.Close()
	// A plugin to which metalplugd may not connect counts as running while its socket file exists.
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return
	}
	client, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0))
	if err != nil {
		return
	}
	defer client.Close()
	for connected := false; ctx.Err() == nil; {
		state := client.GetState()
		switch state {
		case connectivity.Idle:
			client.Connect()
		case connectivity.Ready, connectivity.TransientFailure:
			ended := state == connectivity.TransientFailure
			w.mu.Lock()
			if ctx.Err() == nil {
				w.setLive(p, !ended)
			}
			w.mu.Unlock()
			if ended && connected {
				return
			}
			connected = !ended
		}
		client.WaitForStateChange(ctx, state)
	}
}
