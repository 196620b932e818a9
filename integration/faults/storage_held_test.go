// SPDX-License-Identifier: Apache-2.0

//go:build integration

package faults

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
)

// TestStateLostWhileHeld: from one moment to the next nothing can be kept any more, while a pod works with a disk that has to
// be erased after it. The pod goes on, and the next one gets the disk only erased and once that can be kept, also if the
// daemon dies meanwhile. It takes as long as the daemon does to be sure that a pod has gone: half a minute.
func TestStateLostWhileHeld(t *testing.T) {
	needRoot(t)
	noLeaks(t)
	lives := map[string]func(*mortal){
		"one life": func(*mortal) {},
		"killed":   func(m *mortal) { m.kill(); m.boot() },
	}
	for how, v := range spoils {
		for life, next := range lives {
			t.Run(how+", "+life, func(t *testing.T) {
				t.Parallel()
				m := newMortal(t, wholeText)
				m.kill()
				state := mount(t, filepath.Join(m.dir, "state"))
				m.boot()
				ids := m.working("p1")
				v.spoil(state)
				next(m)
				m.goesOnWith("p1", ids)
				m.release(m.podList()[0])
				m.refused("p2", ids)
				next(m)
				m.refused("p3", ids)
				v.mend(state)
				m.working("p4")
				m.release(m.podList()[0])
				m.await(m.cleared)
			})
		}
	}
}

// working has a new pod work with a disk.
func (m *mortal) working(uid string) (ids []string) {
	m.t.Helper()
	m.shows(diskResource, m.disks[0].id(), "Healthy")
	ids = m.admitted(uid, diskResource)
	if err := eventually(func() error { return m.kubelet.start(m.t.Context(), diskResource, ids) }); err != nil {
		m.t.Fatal(err)
	}
	m.work(uid, ids)
	return ids
}

// goesOnWith makes sure that a pod has its disks still: its next container starts.
func (m *mortal) goesOnWith(uid string, ids []string) {
	m.t.Helper()
	for _, id := range ids {
		if d := m.find(id); d.content != uid || d.user != uid {
			m.t.Errorf("on %s is %q of %q", id, d.content, d.user)
		}
	}
	m.hardware.end(uid)
	if err := m.kubelet.start(m.t.Context(), diskResource, ids); err != nil {
		m.t.Errorf("the next container of %s: %v", uid, err)
	}
	m.work(uid, ids)
}

// refused makes sure that no container of a new pod starts with disks, and ends it.
func (m *mortal) refused(uid string, ids []string) {
	m.t.Helper()
	if got := m.admitted(uid, diskResource); fmt.Sprint(got) != fmt.Sprint(ids) {
		m.t.Fatalf("%s has %v instead of %v", uid, got, ids)
	}
	if err := m.kubelet.start(m.t.Context(), diskResource, ids); err == nil {
		m.t.Errorf("a container of %s starts with %v", uid, ids)
	} else {
		m.t.Logf("%s: %v", uid, err)
	}
	for _, p := range m.podList() {
		m.release(p)
	}
	if err := errors.Join(m.kubelet.failure(), m.failure()); err != nil {
		m.t.Error(err)
	}
}
