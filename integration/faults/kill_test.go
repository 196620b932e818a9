// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestKilledAtEachStepOfAStart kills the daemon at each request to its helpers while it prepares a disk for a
// container, before and after the request is carried out. The container must not start. With the next daemon it must
// start with its own disk.
func TestKilledAtEachStepOfAStart(t *testing.T) {
	noLeaks(t)
	for _, c := range []struct {
		name, text string
		ops        []string
	}{
		{"erased", wholeText, []string{"holders", "prepare"}},
		{"proven empty", strings.Replace(wholeText, `scrub = "discard"`, `scrub = "none"`, 1), []string{"holders", "prepare"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newKillableDaemon(t, c.text)
			for _, d := range m.disks {
				m.waitShown(diskResource, d.id(), "Healthy")
			}
			for _, op := range c.ops {
				m.diesDuringStart(step{op, false})
				m.diesDuringStart(step{op, true})
			}
		})
	}
}

// diesDuringStart starts a container of a new pod. During this start, the daemon is killed at a step.
func (m *killableDaemon) diesDuringStart(last step) {
	m.t.Helper()
	uid, before := "p: "+last.String(), m.countKills()
	m.waitShown(diskResource, m.disks[len(m.disks)-1].id(), "Healthy") // the kubelet may know the resource without a list yet
	ids := m.admitPod(uid, diskResource)
	m.arm(last, m.find(ids[0]))
	ctx, cancel := context.WithTimeout(m.t.Context(), 30*time.Second) // the kubelet's timeout
	err := m.kubelet.start(ctx, diskResource, ids)
	cancel()
	if m.countKills() == before {
		m.t.Fatalf("a start has no step %q: %v", last, err)
	}
	if err == nil {
		m.t.Errorf("a container has started though the daemon has died at %q", last)
	}
	m.kill()
	m.boot()
	if err := eventually(func() error { return m.kubelet.start(m.t.Context(), diskResource, ids) }); err != nil {
		m.t.Errorf("after its death at %q: %v", last, err)
	}
	m.work(uid, ids)
	if err := errors.Join(m.kubelet.failure(), m.failure()); err != nil {
		m.t.Errorf("after its death at %q: %v", last, err)
	}
}
