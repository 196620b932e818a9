// SPDX-License-Identifier: Apache-2.0

//go:build integration

package faults

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/api"
)

// TestStateLostWhileHeld makes all saves fail, while a pod works with a disk that has to be erased after it. The pod goes
// on. The next one gets the disk only erased and once that can be saved, also if the daemon dies in between.
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
				m.goesOnWith("p1", ids) // for which nothing has to be kept that is not
				next(m)
				m.has("p1", ids)
				m.release(m.podList()[0])
				m.refused("p2")
				next(m)
				m.refused("p3")
				v.mend(state)
				m.await(m.cleared)
				m.working("p4")
				m.release(m.podList()[0])
				m.await(m.cleared)
			})
		}
	}
}

// TestOfferedAgainIsNobodys checks that a disk that was erased after its pod is offered once that is saved, not before.
// Data that its owner writes to it then does not count as the pod's, should the daemon die at that very moment.
func TestOfferedAgainIsNobodys(t *testing.T) {
	needRoot(t)
	noLeaks(t)
	cases := map[string]trouble{"with room": {func(volume) {}, func(volume) {}}}
	maps.Copy(cases, spoils)
	for how, v := range cases {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			m := newMortal(t, wholeText)
			m.kill()
			state := mount(t, filepath.Join(m.dir, "state"))
			m.boot()
			ids := m.working("p1")
			v.spoil(state)
			m.release(m.podList()[0])
			if how != "with room" {
				m.await(func() error { return m.waitsToBeKept(ids[0]) })
				v.mend(state)
			}
			m.await(m.cleared)
			m.hostWrites(ids[0])
			m.kill()
			m.boot()
			m.await(func() error { return m.leftAlone(ids[0]) })
			m.gone(diskResource, ids[0])
		})
	}
}

// hostData is the data that the host, and no pod, has written to a disk.
const hostData = "what the host keeps"

func (m *mortal) hostWrites(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.find(id).content = hostData
}

// leftAlone returns an error if the host has not written to a disk, or if the daemon offers it all the same.
func (m *mortal) leftAlone(id string) error {
	content, err := m.says(id, "unproven: "+hostData)
	if content != hostData {
		return fmt.Errorf("%w: %q is on it: %v", errNever, content, err)
	}
	return err
}

// waitsToBeKept returns an error unless a disk is erased and waits until that is saved.
func (m *mortal) waitsToBeKept(id string) error {
	content, err := m.says(id, "could be forgotten")
	if err == nil && content != "" {
		err = fmt.Errorf("%q is on it", content)
	}
	return err
}

// says returns the content of a disk, and an error if the daemon does not give that reason for not offering it.
func (m *mortal) says(id, reason string) (content string, err error) {
	var d api.Device
	socket := filepath.Join(m.dir, "run", "control.sock")
	err = api.Client{Socket: socket}.Get(m.t.Context(), "/v1/devices/"+id, &d)
	if err == nil && (d.Health == "Healthy" || !strings.Contains(d.Reason, reason)) {
		err = fmt.Errorf("%s is %s (%s)", id, d.Health, d.Reason)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.find(id).content, err
}

// working has a new pod work with a disk, once one is fit.
func (m *mortal) working(uid string) (ids []string) {
	m.t.Helper()
	m.shows(diskResource, m.disks[0].id(), "Healthy")
	p := &pod{uid: uid, resource: diskResource}
	m.await(func() error { return m.starts(p) })
	return p.ids
}

// starts gives a pod a disk and starts a container of it, which works with it. Without a disk, the pod does not count.
func (m *mortal) starts(p *pod) error {
	m.remember(p)
	ids, _, err := m.kubelet.allocate(m.t.Context(), p.uid, p.resource, 1, func([]string) {})
	if err == nil {
		err = m.kubelet.start(m.t.Context(), p.resource, ids)
		m.listed(p.uid)
	}
	if err != nil {
		m.release(p)
		return err
	}
	p.ids = ids
	m.work(p.uid, ids)
	return nil
}

// listed waits until the daemon has seen a pod in the kubelet's list. A pod that ends before, with a disk that another
// has just left, may count as present for a while.
func (m *mortal) listed(uid string) {
	m.t.Helper()
	m.await(func() error {
		if !strings.Contains(m.journal.String(), "pod=default/"+uid+"/main") {
			return errors.New(uid + " is not listed")
		}
		return nil
	})
}

// goesOnWith makes sure that a pod still has its disks, by starting its next container.
func (m *mortal) goesOnWith(uid string, ids []string) {
	m.t.Helper()
	m.has(uid, ids)
	m.hardware.end(uid)
	if err := eventually(func() error { return m.kubelet.start(m.t.Context(), diskResource, ids) }); err != nil {
		m.t.Errorf("the next container of %s: %v", uid, err)
	}
	m.work(uid, ids)
}

// has makes sure that a pod has what it has written.
func (m *mortal) has(uid string, ids []string) {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		if d := m.find(id); d.content != uid || d.user != uid {
			m.t.Errorf("on %s is what %q has left, and %q has it open", id, d.content, d.user)
		}
	}
}

// refused makes sure that no container of a new pod starts with any disk, since what it leaves could be forgotten.
func (m *mortal) refused(uid string) {
	m.t.Helper()
	m.await(func() error {
		err := m.starts(&pod{uid: uid, resource: diskResource})
		switch {
		case err == nil:
			return fmt.Errorf("%w: a container of %s starts", errNever, uid)
		case strings.Contains(err.Error(), "could be forgotten"):
			return nil
		}
		return err // none is fit just now
	})
	if err := errors.Join(m.kubelet.failure(), m.failure()); err != nil {
		m.t.Error(err)
	}
}
