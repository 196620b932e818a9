// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"fmt"
	"path/filepath"
)

// Watch sees the cgroups of pods come and go.
type Watch struct {
	Root string              // where the cgroups are ("/sys/fs/cgroup"), of version 1 or 2; empty: pods have none
	Came func(podUID string) // the pod has a cgroup; nil: nobody wants to know
	Gone func(podUID string) // its cgroup is removed, and so no process is left in it; what [Populated] reports of that applies
}

// Run watches until ctx ends; started is called when Came has been called for all pods that are there at first and
// nothing can be missed any more. A pod whose cgroup is removed before there was time to look is reported as gone alone.
// Whatever calls Run makes, it makes in turn; the next one waits until the last has returned.
//
// It sleeps until a cgroup comes or goes beside that of a pod; that there is no cgroup of all pods yet is no error. Where
// it gives up, nothing is reported that is not known for certain.
func (w *Watch) Run(ctx context.Context, started func()) error {
	if w.Root == "" {
		if started != nil {
			started()
		}
		<-ctx.Done()
		return nil
	}
	n, err := newNotifier()
	if err != nil {
		return err
	}
	defer n.close()
	var pods map[string][]string
	var changes []change
	for {
		now, all, err := w.settle(n, changes)
		if err != nil {
			return err
		}
		w.report(pods, now, podsOf(all))
		pods = now
		if started != nil {
			started()
			started = nil
		}
		changes, err = n.wait(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// settleRounds bounds how often one looks before anything is reported: somebody may make and remove cgroups all the time.
const settleRounds = 16

// settle looks until nothing has changed during the look. What is told later has then happened later, and no pod that a
// look has found gone is told of again. It returns the pods and all changes so far.
func (w *Watch) settle(n *notifier, changes []change) (map[string][]string, []change, error) {
	for round := 1; ; round++ {
		pods, err := w.look(n)
		if err != nil {
			return nil, nil, err
		}
		more, err := n.pending()
		if err != nil {
			return nil, nil, err
		}
		changes = append(changes, more...)
		if len(more) == 0 || round == settleRounds {
			return pods, changes, nil
		}
	}
}

// look returns the pods that are there and watches all directories in which that may change: each before it is read, so
// that what changes meanwhile is seen then or reported afterwards.
func (w *Watch) look(n *notifier) (pods map[string][]string, err error) {
	dir, err := hierarchy(w.Root)
	if err != nil {
		return nil, err
	}
	found := walk{visit: n.add, pods: make(map[string][]string)}
	if err := found.prefix(dir, 0); err != nil {
		return nil, fmt.Errorf("look for pods in %s: %w", w.Root, err)
	}
	return found.pods, n.sweep()
}

// report says how the pods that are there now differ from those before. A pod that is in neither, and yet was touched,
// came and went between.
func (w *Watch) report(before, now map[string][]string, touched map[string]bool) {
	for uid := range before {
		if now[uid] == nil {
			w.Gone(uid)
		}
	}
	for uid := range touched {
		if now[uid] == nil && before[uid] == nil {
			w.Gone(uid)
		}
	}
	for uid := range now {
		if before[uid] == nil && w.Came != nil {
			w.Came(uid)
		}
	}
}

// podsOf returns the UIDs of the pods that are named in changes.
func podsOf(changes []change) map[string]bool {
	uids := make(map[string]bool)
	for _, c := range changes {
		if uid, ok := podUID(filepath.Base(c.dir), c.name); ok {
			uids[uid] = true
		}
	}
	return uids
}
