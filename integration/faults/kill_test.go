// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestKilledAtEachStepOfAStart: the daemon dies at each request to its hands while it makes a disk fit for a container,
// before and after it is carried out. The container does not start, and does with the next daemon, as its own.
func TestKilledAtEachStepOfAStart(t *testing.T) {
	noLeaks(t)
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("carried out %v", after), func(t *testing.T) {
			m := newMortal(t)
			for n := 1; n <= len(m.disks); n++ {
				m.shows(diskResource, m.disks[n-1].id(), "Healthy")
			}
			for n := 1; n < len(m.disks); n++ {
				if !m.diesDuringStart(n, after) {
					break
				}
			}
			if len(m.killed) < 2 {
				t.Errorf("it was killed only at %v", m.killed)
			}
			t.Logf("killed at %q", m.killed)
		})
	}
}

// diesDuringStart starts a container of a new pod and tells whether the daemon was killed meanwhile.
func (m *mortal) diesDuringStart(n int, after bool) (died bool) {
	m.t.Helper()
	uid, before := fmt.Sprintf("p%d", n), m.deaths()
	ids := m.admitted(uid, diskResource)
	m.arm(n, after)
	ctx, cancel := context.WithTimeout(m.t.Context(), 30*time.Second) // as the kubelet does
	err := m.kubelet.start(ctx, diskResource, ids)
	cancel()
	m.arm(0, false)
	if died = m.deaths() > before; died {
		if err == nil {
			m.t.Errorf("%s has started though the daemon has died at %q", uid, m.killed[len(m.killed)-1])
		}
		m.kill()
		m.boot()
		if err := eventually(func() error { return m.kubelet.start(m.t.Context(), diskResource, ids) }); err != nil {
			m.t.Error(err)
		}
	} else if err != nil {
		m.t.Error(err)
	}
	m.work(uid, ids)
	if err := errors.Join(m.kubelet.failure(), m.failure()); err != nil {
		m.t.Error(err)
	}
	return died
}
