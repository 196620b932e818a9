// SPDX-License-Identifier: Apache-2.0

//go:build integration

package faults

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestKilledAtEachStepOfARelease kills the daemon at each request to its helpers after a pod has gone. The next daemon
// ends what was begun, and no pod gets the disk before. The test takes half a minute, which the daemon needs to be sure
// that the pod has gone.
func TestKilledAtEachStepOfARelease(t *testing.T) {
	noLeaks(t)
	for _, op := range []string{"holders", "prepare", "probe"} {
		for _, after := range []bool{false, true} {
			last := step{op, after}
			t.Run(last.String(), func(t *testing.T) {
				t.Parallel()
				m := newMortal(t, wholeText)
				m.arm(last, m.dirty("p1"))
				m.awaitCleared()
			})
		}
	}
}

// dirty has a pod work with a disk and end.
func (m *mortal) dirty(uid string) *disk {
	m.t.Helper()
	m.shows(diskResource, m.disks[0].id(), "Healthy")
	ids := m.admitted(uid, diskResource)
	if err := m.kubelet.start(m.t.Context(), diskResource, ids); err != nil {
		m.t.Fatal(err)
	}
	m.work(uid, ids)
	for _, p := range m.podList() {
		m.release(p)
	}
	return m.find(ids[0])
}

// awaitCleared waits until the daemon has died, starts it again, and waits until no disk has anything on it and all are
// offered.
func (m *mortal) awaitCleared() {
	m.t.Helper()
	m.await(func() error {
		if m.died() == 0 {
			return errors.New("the daemon has not died at that step")
		}
		return nil
	})
	m.kill()
	m.boot()
	m.await(m.cleared)
}

// await is eventually for what may take the daemon a while.
func (m *mortal) await(holds func() error) {
	m.t.Helper()
	for limit := time.Now().Add(3 * time.Minute); ; {
		err := eventually(holds)
		if err == nil {
			return
		}
		if errors.Is(err, errNever) || time.Now().After(limit) {
			m.t.Fatal(err)
		}
	}
}

// cleared tells what is not as it should be in the end.
func (m *mortal) cleared() error {
	if err := errors.Join(m.kubelet.failure(), m.failure()); err != nil {
		return fmt.Errorf("%w: %w", errNever, err)
	}
	list := m.kubelet.view(diskResource)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.disks {
		if d.content != "" || list[d.id()] != "Healthy" {
			return fmt.Errorf("%s is %q, %q is on it", d.serial, list[d.id()], d.content)
		}
	}
	return nil
}
