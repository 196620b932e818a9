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

// TestStateLostWhileHeld makes all saves fail while a pod works with a disk that must be erased afterwards. The pod
// must be able to continue. The next pod may get the disk only after it was erased and this was saved, even if the
// daemon is killed in between.
func TestStateLostWhileHeld(t *testing.T) {
	needRoot(t)
	noLeaks(t)
	lives := map[string]func(*killableDaemon){
		"one life": func(*killableDaemon) {},
		"killed":   func(m *killableDaemon) { m.kill(); m.boot() },
	}
	for how, v := range spoils {
		for life, next := range lives {
			t.Run(how+", "+life, func(t *testing.T) {
				t.Parallel()
				m := newKillableDaemon(t, wholeText)
				m.kill()
				state := mount(t, filepath.Join(m.dir, "state"))
				m.boot()
				ids := m.startWorkingPod("p1")
				v.spoil(state)
				m.goesOnWith("p1", ids) // this work needs no unsaved state
				next(m)
				m.checkData("p1", ids)
				m.release(m.podList()[0])
				m.checkRefused("p2")
				next(m)
				m.checkRefused("p3")
				v.mend(state)
				m.await(m.compareFinal)
				m.startWorkingPod("p4")
				m.release(m.podList()[0])
				m.await(m.compareFinal)
			})
		}
	}
}

// TestOfferedAgainHasNoTenant checks that after a pod, a disk is erased only when the state can be saved, and offered only when the
// erasure has been saved. Data that the host writes to the disk after that must not count as the pod's, even if the daemon is
// killed at that moment.
func TestOfferedAgainHasNoTenant(t *testing.T) {
	needRoot(t)
	noLeaks(t)
	cases := map[string]trouble{"with room": {func(volume) {}, func(volume) {}}}
	maps.Copy(cases, spoils)
	for how, v := range cases {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			m := newKillableDaemon(t, wholeText)
			m.kill()
			state := mount(t, filepath.Join(m.dir, "state"))
			m.boot()
			ids := m.startWorkingPod("p1")
			v.spoil(state)
			m.release(m.podList()[0])
			if how != "with room" {
				m.await(func() error { return m.waitsToBegin(ids[0], "p1") })
				v.mend(state)
			}
			m.await(func() error { return m.offeredErased(ids[0]) })
			m.hostWrites(ids[0])
			m.kill()
			m.boot()
			m.await(func() error { return m.leftAlone(ids[0]) })
			m.waitGone(diskResource, ids[0])
		})
	}
}

// hostData is data that the host, and not a pod, has written to a disk.
const hostData = "what the host keeps"

func (m *killableDaemon) hostWrites(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.find(id).content = hostData
}

// leftAlone returns an error if the daemon has erased data of the host, or offers the disk.
func (m *killableDaemon) leftAlone(id string) error {
	content, err := m.readContent(id, "unproven: the disk contains "+hostData)
	if content != hostData {
		return fmt.Errorf("%w: %q is on it: %v", errNever, content, err)
	}
	return err
}

// waitsToBegin returns an error unless a disk still has a pod's content, and its erasure waits until its start can be saved.
func (m *killableDaemon) waitsToBegin(id, uid string) error {
	content, err := m.readContent(id, "the start of the erasure cannot be saved")
	if err == nil && content != uid {
		err = fmt.Errorf("%q is on it", content)
	}
	return err
}

// offeredErased returns an error unless a disk was erased and the daemon has offered it since. The kubelet's list does not show
// this, because it may be from before the erasure.
func (m *killableDaemon) offeredErased(id string) error {
	m.mu.Lock()
	content := m.find(id).content
	m.mu.Unlock()
	var d api.Device
	err := api.Client{Socket: filepath.Join(m.dir, "run", "control.sock")}.Get(m.t.Context(), "/v1/devices/"+id, &d)
	if err == nil && (content != "" || d.Health != "Healthy") {
		err = fmt.Errorf("%s is %s (%s), and %q is on it", id, d.Health, d.Reason, content)
	}
	return err
}

// startWorkingPod makes a new pod work with a disk, when one is available.
func (m *killableDaemon) startWorkingPod(uid string) (ids []string) {
	m.t.Helper()
	m.waitShown(diskResource, m.disks[0].id(), "Healthy")
	p := &pod{uid: uid, resource: diskResource}
	m.await(func() error { return m.startPod(p) })
	return p.ids
}

// startPod gives a pod a disk and starts a container that works with it. If the pod gets no disk, it is removed.
func (m *killableDaemon) startPod(p *pod) error {
	m.remember(p)
	ids, _, err := m.kubelet.allocate(m.t.Context(), p.uid, p.resource, 1, func([]string) {})
	if err == nil {
		err = m.kubelet.start(m.t.Context(), p.resource, ids)
		m.waitListed(p.uid)
	}
	if err != nil {
		m.release(p)
		return err
	}
	p.ids = ids
	m.work(p.uid, ids)
	return nil
}

// waitListed waits until the daemon has seen a pod in the kubelet's list. If a pod ends before that, and its disk was just
// released by another pod, the pod may count as present for a while.
func (m *killableDaemon) waitListed(uid string) {
	m.t.Helper()
	m.await(func() error {
		if !strings.Contains(m.journal.String(), "pod=default/"+uid+"/main") {
			return errors.New(uid + " is not listed")
		}
		return nil
	})
}

// goesOnWith checks that a pod still has its disks, by starting its next container.
func (m *killableDaemon) goesOnWith(uid string, ids []string) {
	m.t.Helper()
	m.checkData(uid, ids)
	m.hardware.end(uid)
	if err := eventually(func() error { return m.kubelet.start(m.t.Context(), diskResource, ids) }); err != nil {
		m.t.Errorf("the next container of %s: %v", uid, err)
	}
	m.work(uid, ids)
}

// checkData checks that a pod's disks contain the data that it has written.
func (m *killableDaemon) checkData(uid string, ids []string) {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		if d := m.find(id); d.content != uid || d.user != uid {
			m.t.Errorf("on %s is what %q has left, and %q has it open", id, d.content, d.user)
		}
	}
}

// checkRefused checks that no container of a new pod starts with a disk, because its later erasure cannot be saved.
func (m *killableDaemon) checkRefused(uid string) {
	m.t.Helper()
	m.await(func() error {
		err := m.startPod(&pod{uid: uid, resource: diskResource})
		switch {
		case err == nil:
			return fmt.Errorf("%w: a container of %s starts", errNever, uid)
		case strings.Contains(err.Error(), "cannot be saved"):
			return nil
		}
		return err // no disk is available at the moment
	})
	if err := errors.Join(m.kubelet.failure(), m.failure()); err != nil {
		m.t.Error(err)
	}
}
