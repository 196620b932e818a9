// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/directory"
)

// own is what the daemon has made for itself in paths.run and paths.state, and makes again when it is removed. It is for one
// goroutine.
type own struct {
	*daemon
	dirs      []*lock
	socket    served
	complaint string // what was logged last of what cannot be made again
	unwatched string // the same of the watch
	shared    string // and of the lock of the kubelet's directory
}

// keepOwn serves the control socket, and makes again what is removed of the daemon's own directories. The devices are served
// all the same if that cannot be done: it is logged. The error is that another instance has taken what was removed.
func (d *daemon) keepOwn(ctx context.Context, ready func()) error {
	o := &own{daemon: d, dirs: []*lock{d.locks.state, d.locks.run}, socket: served{daemon: d}}
	w := o.watch()
	if w != nil {
		defer w.Close()
	}
	kubelets, stop := d.watch.Subscribe() // its directory is locked, too
	defer stop()
	o.socket.serve(ctx)
	defer o.socket.end()
	ready()
	return o.follow(ctx, w, kubelets)
}

// watch returns a watch of the directories; nil: there is none, which is logged.
func (o *own) watch() *directory.Watch {
	w, err := directory.Open(o.dirs[0].dir.path, o.dirs[1].dir.path)
	if err != nil {
		o.Log.Warn("own directories not watched", "err", err)
		return nil
	}
	o.rearm(w)
	return w
}

// rearm watches what is there now. That it cannot is logged once.
func (o *own) rearm(w *directory.Watch) {
	if w == nil {
		return
	}
	complaint := ""
	if err := w.Rearm(); err != nil {
		complaint = err.Error()
	}
	if complaint != o.unwatched && complaint != "" {
		o.Log.Warn("own directories not watched", "err", complaint)
	}
	o.unwatched = complaint
}

// follow makes again what is removed, until ctx ends. What no event tells, as that a directory far above was renamed or a file
// system was mounted there, it sees when it looks after a long while.
func (o *own) follow(ctx context.Context, w *directory.Watch, kubelets <-chan struct{}) error {
	var events chan directory.Event
	var lost chan error
	if w != nil {
		events, lost = w.Events, w.Errors
	}
	var rest rest
	rest.event() // for what was removed before it was watched
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-events:
			if o.concerns(w, e) {
				rest.event()
			}
		case <-lost:
			rest.event()
		case <-kubelets:
			rest.event()
		case <-rest.due:
			o.rearm(w)
			whole, err := o.makeAgain(ctx)
			if err != nil {
				return err
			}
			rest.looked(whole)
		}
	}
}

// concerns tells whether something may have been removed.
func (o *own) concerns(w *directory.Watch, e directory.Event) bool {
	if w.Itself(e) {
		o.rearm(w)
		return true
	}
	// What is to replace a file is our own, also where it cannot, and so is what has replaced one, also where that may not last:
	// another attempt would follow at once, and for ever.
	name := directory.Name(e)
	own := strings.HasSuffix(name, inventory.Unfinished) || o.inventory.Left(name)
	return directory.Moved(e) && !own && o.has(name)
}

// has tells whether a file is in one of the directories, and not in one above them.
func (o *own) has(file string) bool {
	return slices.ContainsFunc(o.dirs, func(l *lock) bool { return l.dir.path == filepath.Dir(file) })
}

// makeAgain makes again what is missing, and tells whether all is there. The error is that another instance has it: before
// anything is written in a directory it is locked.
func (o *own) makeAgain(ctx context.Context) (whole bool, err error) {
	var made, missing []string
	o.lockKubelets()
	for _, l := range o.dirs {
		err := o.makeDir(ctx, l)
		if ctx.Err() != nil {
			return true, nil // it is stopping, and writes then what is its own
		}
		if errors.Is(err, errOther) {
			return false, err
		}
		made, missing = append(made, l.madeAgain()...), some(missing, err)
	}
	written, err := o.inventory.Rewrite(ctx)
	if ctx.Err() != nil {
		return true, nil // it is stopping, and writes them then
	}
	for _, name := range written {
		made = append(made, filepath.Join(o.Config.Paths.State, name))
	}
	missing = some(missing, err)
	o.audit.Flush() // which looks for its file
	if o.socket.serve(ctx) {
		made = append(made, o.socket.String())
	}
	o.tell(made, missing)
	return len(missing) == 0 && o.socket.complaint == "", nil
}

// makeDir makes a directory again if it is missing, and locks what is there in its place.
func (o *own) makeDir(ctx context.Context, l *lock) error {
	if err := l.makeDir(); err != nil {
		remedy := "make it"
		if len(o.Sockets) > 0 { // in its sandbox it sees no other in that place
			remedy = "systemctl stop metalplugd && systemctl start metalplugd"
		}
		return fmt.Errorf("make %s again: %w: %s", l.dir.path, plainCause(err), remedy)
	}
	return l.take(patience(ctx, 2*dying))
}

// lockKubelets locks the kubelet's directory, which may be another by now. Who has locked that one need not be an instance,
// and ends nothing: it is logged, and tried again with all else.
func (o *own) lockKubelets() {
	complaint := ""
	if err := o.locks.plugins.own(); err != nil {
		complaint = err.Error()
	}
	if complaint != o.shared && complaint != "" {
		o.Log.Warn("kubelet directory not locked", "err", complaint)
	}
	o.shared = complaint
}

// some appends the text of an error, if there is one.
func some(texts []string, err error) []string {
	if err != nil {
		texts = append(texts, err.Error())
	}
	return texts
}

// tell logs what was made again, and what was not, unless that was told.
func (o *own) tell(made, missing []string) {
	if len(made) > 0 {
		o.Log.Warn("own files made again", "detail", strings.Join(made, ", "), "err", "they were removed, or replaced, beneath the daemon")
	}
	complaint := strings.Join(missing, "; ")
	if complaint != o.complaint && complaint != "" {
		o.Log.Error("own files not made again", "err", complaint)
	}
	o.complaint = complaint
}
