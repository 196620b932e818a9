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

// patience is the maximum time that a test waits for an expected event. Tests of speed print times and do not check them.
const patience = 15 * time.Second

// leisure is the time after which a kubelet in these tests admits the pods that existed before its start. Real kubelets
// took 25 to 190 ms on idle machines. TestRestartTimes shows how long a plugin takes in comparison.
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
	if err := k.FirstBatch(within(t)); err != nil { // metalplugd frees no device before that
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

// within returns a context for one step.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until a condition is true.
func eventually(t *testing.T, what string, holds func() error) {
	t.Helper()
	eventuallyIn(t, patience, what, holds)
}

// eventuallyIn is like eventually, for conditions that may take longer.
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

// sees waits until the kubelet shows these counts for a resource, and logs the time since kubelet.sock.
func sees(t *testing.T, k *Kubelet, resource string, capacity, allocatable int64) time.Duration {
	t.Helper()
	since, err := k.Wait(within(t), resource, protocol.Counts{Capacity: capacity, Allocatable: allocatable}, patience)
	if err != nil {
		t.Fatal(err)
	}
	return since
}

// pod returns a pod with one container "main" that requests n devices.
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

// assigned returns the devices of the container "main" of a pod.
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

// rejected checks that a pod is not admitted, with the given reason.
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
