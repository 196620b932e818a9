// SPDX-License-Identifier: Apache-2.0

package devicemanager

// The tests in this file check the harness with a minimal plugin. The harness must behave like a real kubelet, even
// where that is bad for a plugin.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/integration/devicemanager/host"
	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// registered returns a node with a registered plugin whose devices are visible.
func registered(t *testing.T, o Options, list ...*api.Device) (*Kubelet, *rival) {
	t.Helper()
	k := newNode(t, o)
	r := newRival(t, k.DevicePlugins(), list...)
	if err := r.register(within(t)); err != nil {
		t.Fatal(err)
	}
	n := int64(len(list))
	sees(t, k, gadget, n, n)
	return k, r
}

// The release that a build reports is the one in its module file.
func TestHarnessRelease(t *testing.T) {
	t.Logf("device manager of Kubernetes %s", host.Release)
	minor := host.Release[:strings.LastIndexByte(host.Release, '.')]
	for _, name := range []string{"go." + minor + ".mod", "go.mod"} {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the newest release has no separate file
		}
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\tk8s.io/kubernetes "+host.Release+"\n") {
			t.Errorf("%s does not ask for %s", name, host.Release)
		}
		return
	}
	t.Error("no module file")
}

func TestHarnessLifeOfAPod(t *testing.T) {
	k, _ := registered(t, Options{}, onNode("a", 0), onNode("b", -1))
	admit(t, k, pod("p1", gadget, 2))
	if got := run(t, k, "p1", "main").Env["GADGET"]; got != "yes" {
		t.Errorf("env GADGET = %q", got)
	}
	pods, err := k.PodResources(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(pods) != 1 || len(pods[0].GetContainers()[0].GetDevices()) != 2 {
		t.Errorf("PodResources: %v", pods)
	}
	rejected(t, k, pod("p2", gadget, 1), "UnexpectedAdmissionError")
	remove(t, k, "p1")
	admit(t, k, pod("p3", gadget, 2))
}

func TestHarnessHealth(t *testing.T) {
	k, r := registered(t, Options{}, onNode("a", 0))
	admit(t, k, pod("p1", gadget, 1))
	r.lists <- []*api.Device{{ID: "a", Health: api.Unhealthy}}
	sees(t, k, gadget, 1, 0)
	status, err := k.Status(within(t), "p1")
	if err != nil {
		t.Fatal(err)
	}
	if len(status) != 1 || status[0].Health != "Unhealthy" {
		t.Errorf("status of the pod: %v", status)
	}
}

func TestHarnessPreStart(t *testing.T) {
	k, r := registered(t, Options{}, onNode("a", 0))
	admit(t, k, pod("p1", gadget, 1))
	r.prestart = func() error { return errors.New("no thanks") }
	if _, err := k.Run(within(t), "p1", "main"); err == nil || !strings.Contains(err.Error(), "no thanks") {
		t.Errorf("start of the container: %v", err)
	}
}

// batch returns a node with three pods: one with a running container, one whose container has crashed and will restart,
// and one whose init container has finished.
func batch(t *testing.T, k *Kubelet, resource string) {
	t.Helper()
	admit(t, k, pod("running", resource, 1))
	run(t, k, "running", "main")

	admit(t, k, pod("crashing", resource, 1))
	run(t, k, "crashing", "main")
	k.SetState("crashing", "main", protocol.Exited)

	p := pod("initialized", resource, 1)
	p.Init = []protocol.Container{{Name: "init", Limits: map[string]int64{resource: 1}}}
	admit(t, k, p)
	run(t, k, "initialized", "init")
	k.SetState("initialized", "init", protocol.Exited)
	run(t, k, "initialized", "main")
}

func TestHarnessRestart(t *testing.T) {
	list := []*api.Device{onNode("a", 0), onNode("b", 0), onNode("c", 0)}
	t.Run("plugin returns", func(t *testing.T) {
		k, r := registered(t, Options{}, list...)
		batch(t, k, gadget)
		k.Kill()
		back := make(chan error, 1)
		ctx := within(t)
		if err := k.Boot(ctx); err != nil {
			t.Fatal(err)
		}
		go func() { back <- r.register(ctx) }()
		if err := k.FirstBatch(ctx); err != nil {
			t.Error(err)
		}
		if err := <-back; err != nil {
			t.Error(err)
		}
	})
	t.Run("plugin stays away", func(t *testing.T) {
		k, _ := registered(t, Options{}, list...)
		batch(t, k, gadget)
		if err := k.Restart(within(t)); err != nil {
			t.Fatal(err)
		}
		err := k.FirstBatch(within(t))
		if err == nil || strings.Count(err.Error(), "no healthy devices present") != 2 || strings.Contains(err.Error(), "pod running") {
			t.Errorf("want the crashing and the initialized pod lost, got: %v", err)
		}
	})
}

func TestHarnessCutsStreams(t *testing.T) {
	k, r := registered(t, Options{}, onNode("a", 0))
	k.Kill()
	select {
	case <-r.ended:
	case <-within(t).Done():
		t.Error("stream survived the kubelet")
	}
}

// Since v1.34, an ID that leaves the list during its Allocate crashes the kubelet. The harness must report that as an
// error.
func TestHarnessCrash(t *testing.T) {
	k, r := registered(t, Options{}, onNode("a", 0))
	r.allocate = func() {
		r.lists <- nil
		eventually(t, "list without the device", func() error {
			if n := len(devices(t, k)); n != 0 {
				return errors.New("still there")
			}
			return nil
		})
	}
	err := k.Admit(within(t), pod("p1", gadget, 1))
	if !host.Crashes {
		if err != nil {
			t.Fatalf("admit: %v", err)
		}
		return
	}
	if !errors.Is(err, ErrDied) || !strings.Contains(err.Error(), "nil pointer") {
		t.Fatalf("admit: %v", err)
	}
	if err := k.Boot(within(t)); err != nil {
		t.Fatal(err)
	}
}

func TestHarnessTopology(t *testing.T) {
	k, _ := registered(t, Options{TopologyPolicy: "single-numa-node", NUMANodes: 2},
		onNode("a0", 0), onNode("b1", 1), onNode("c0", 0), onNode("d1", 1))
	admit(t, k, pod("p1", gadget, 2))
	got := assigned(t, k, "p1")
	if len(got) != 2 || got[0].NUMA[0] != got[1].NUMA[0] {
		t.Errorf("assigned: %v", got)
	}
	remove(t, k, "p1")
	rejected(t, k, pod("p2", gadget, 3), "TopologyAffinityError")
}

// The PodResources server lists a device with two NUMA nodes twice. The server in the tests of daemon/plugin does the
// same.
func TestHarnessPodResources(t *testing.T) {
	wide := onNode("a", 0)
	wide.Topology.Nodes = append(wide.Topology.Nodes, &api.NUMANode{ID: 1})
	k, _ := registered(t, Options{NUMANodes: 2}, wide, onNode("b", -1))
	admit(t, k, pod("p1", gadget, 2))
	pods, err := k.PodResources(within(t))
	if err != nil || len(pods) != 1 || len(pods[0].GetContainers()) != 1 {
		t.Fatalf("PodResources: %v, %v", pods, err)
	}
	var nodes []string
	for _, d := range pods[0].GetContainers()[0].GetDevices() {
		if d.GetResourceName() != gadget || len(d.GetDeviceIds()) != 1 {
			t.Errorf("a device is told as %v", d)
			continue
		}
		at := "-"
		if d.GetTopology() != nil {
			at = fmt.Sprint(d.GetTopology().GetNodes()[0].GetID())
		}
		nodes = append(nodes, d.GetDeviceIds()[0]+" on "+at)
	}
	slices.Sort(nodes)
	if want := []string{"a on 0", "a on 1", "b on -"}; !slices.Equal(nodes, want) || pods[0].GetName() != "p1" {
		t.Errorf("%s has %q instead of %q", pods[0].GetName(), nodes, want)
	}
}

func TestHarnessStop(t *testing.T) {
	k, _ := registered(t, Options{}, onNode("a", 0))
	if err := k.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
}
