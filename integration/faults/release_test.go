// SPDX-License-Identifier: Apache-2.0

//go:build integration

package faults

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestKilledAtEachStepOfARelease kills the daemon at each request to its helpers after a pod has ended. The next daemon
// must finish the work, and no pod may get the disk before that. The test takes half a minute, because the daemon needs
// that time to be sure that the pod has ended.
func TestKilledAtEachStepOfARelease(t *testing.T) {
	noLeaks(t)
	for _, op := range []string{"holders", "prepare", "probe"} {
		for _, after := range []bool{false, true} {
			last := step{op, after}
			t.Run(last.String(), func(t *testing.T) {
				t.Parallel()
				m := newKillableDaemon(t, wholeText)
				m.arm(last, m.dirty("p1"))
				m.awaitCleared()
			})
		}
	}
}

// dirty starts and ends a pod that works with a disk.
func (m *killableDaemon) dirty(uid string) *disk {
	m.t.Helper()
	m.waitShown(diskResource, m.disks[0].id(), "Healthy")
	ids := m.admitPod(uid, diskResource)
	if err := m.kubelet.start(m.t.Context(), diskResource, ids); err != nil {
		m.t.Fatal(err)
	}
	m.work(uid, ids)
	for _, p := range m.podList() {
		m.release(p)
	}
	return m.find(ids[0])
}

// awaitCleared waits until the daemon has been killed, restarts it, and waits until all disks are blank and offered.
func (m *killableDaemon) awaitCleared() {
	m.t.Helper()
	m.await(func() error {
		if m.countKills() == 0 {
			return errors.New("the daemon has not died at that step")
		}
		return nil
	})
	m.kill()
	m.boot()
	m.await(m.compareFinal)
}

// await is like eventually, for conditions that take the daemon longer.
func (m *killableDaemon) await(holds func() error) {
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

// compareFinal returns the difference from the expected final state.
func (m *killableDaemon) compareFinal() error {
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
