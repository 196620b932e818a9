// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/metalplug/metalplug/integration/devicemanager/host"
	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// patience is how long a test waits for an event that must happen. A test of speed measures and prints the time. It
// asserts none.
const patience = 15 * time.Second

// leisure is when a kubelet of these tests admits the pods that were there before it. Real ones did so after 25 to 190
// ms, on idle machines. TestRestartTimes prints how a plugin compares with that.
const leisure = 500 * time.Millisecond

func TestMain(m *testing.M) {
	if host.Requested() {
		os.Exit(host.Main())
	}
	os.Exit(m.Run())
}

// newNode starts a kubelet in a directory with a short name, because the path of a socket has at most 107 bytes.
func newNode(t *testing.T, o Options) *Kubelet {
	t.Helper()
	if o.Dir == "" {
		o.Dir = shortDir(t)
	}
	if o.FirstBatch == 0 {
		o.FirstBatch = leisure
	}
	k, err := Start(within(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		k.Kill()
		if t.Failed() {
			t.Logf("kubelet's last log:\n%s", k.Log())
		}
	})
	if err := k.FirstBatch(within(t)); err != nil { // until then nothing is ever freed
		t.Fatal(err)
	}
	return k
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// within is a context for one step.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until a condition holds.
func eventually(t *testing.T, what string, holds func() error) {
	t.Helper()
	eventuallyIn(t, patience, what, holds)
}

// eventuallyIn is eventually for what may take longer.
func eventuallyIn(t *testing.T, limit time.Duration, what string, holds func() error) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(limit / 3000)
	defer tick.Stop()
	for {
		err := holds()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not after %v: %v", what, limit, err)
		}
	}
}

// sees waits until the kubelet shows this many devices of a resource, and says
// how long after kubelet.sock that was.
func sees(t *testing.T, k *Kubelet, resource string, capacity, allocatable int64) time.Duration {
	t.Helper()
	since, err := k.Wait(within(t), resource, protocol.Counts{Capacity: capacity, Allocatable: allocatable}, patience)
	if err != nil {
		t.Fatal(err)
	}
	return since
}

// pod is a pod with one container "main" that asks for n devices.
func pod(uid, resource string, n int64) protocol.Pod {
	return protocol.Pod{
		UID: uid, Namespace: "default", Name: uid,
		Containers: []protocol.Container{{Name: "main", Limits: map[string]int64{resource: n}}},
	}
}

func admit(t *testing.T, k *Kubelet, p protocol.Pod) {
	t.Helper()
	if err := k.Admit(within(t), p); err != nil {
		t.Fatalf("admit %s: %v", p.UID, err)
	}
}

func run(t *testing.T, k *Kubelet, uid, container string) *protocol.RunOptions {
	t.Helper()
	opts, err := k.Run(within(t), uid, container)
	if err != nil {
		t.Fatal(err)
	}
	return opts
}

func remove(t *testing.T, k *Kubelet, uid string) {
	t.Helper()
	if err := k.Remove(within(t), uid); err != nil {
		t.Fatal(err)
	}
}

// assigned are the IDs that the container "main" of a pod holds.
func assigned(t *testing.T, k *Kubelet, uid string) []protocol.Device {
	t.Helper()
	list, err := k.Assigned(within(t), uid, "main")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func devices(t *testing.T, k *Kubelet) map[string]protocol.Device {
	t.Helper()
	list, err := k.Devices(within(t))
	if err != nil {
		t.Fatal(err)
	}
	byID := map[string]protocol.Device{}
	for _, d := range list {
		byID[d.ID] = d
	}
	return byID
}

// rejected asserts that a pod is not admitted, and why.
func rejected(t *testing.T, k *Kubelet, p protocol.Pod, reason string) *protocol.Rejection {
	t.Helper()
	err := k.Admit(within(t), p)
	var why *protocol.Rejection
	if !errors.As(err, &why) {
		t.Fatalf("admit %s: %v instead of a rejection", p.UID, err)
	}
	if why.Reason != reason {
		t.Fatalf("admit %s: %v instead of %s", p.UID, why, reason)
	}
	return why
}
