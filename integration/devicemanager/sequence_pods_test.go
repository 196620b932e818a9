// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/integration/devicemanager/host"
	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// This file has the steps of a sequence for pods.

// fits reports whether the kubelet must admit a pod that requests n widgets, and whether it may. If the widgets are on
// several NUMA nodes, the topology policy decides.
func (s *sequence) fits(n int) (must, may bool) {
	var total, most int
	for node := range 2 {
		free := 0
		for _, p := range s.parts {
			if p.numa == node && s.serving && p.well() && s.holder(p.id()) == nil {
				free++
			}
		}
		total, most = total+free, max(most, free)
	}
	switch s.policy {
	case "single-numa-node":
		return most >= n, most >= n
	case "restricted": // between the two counts, the result depends on devices that are listed and not free
		return most >= n, total >= n
	default:
		return total >= n, total >= n
	}
}

// holder returns the pod that has a widget, or nil.
func (s *sequence) holder(id string) *tenant {
	for _, p := range s.pods {
		if slices.Contains(p.ids, id) {
			return p
		}
	}
	return nil
}

// find returns the widget with an ID.
func (s *sequence) find(id string) *part {
	for _, p := range s.parts {
		if p.id() == id {
			return p
		}
	}
	s.t.Fatalf("%q is no widget's ID", id)
	return nil
}

// fit reports whether all widgets of a pod are healthy.
func (s *sequence) fit(p *tenant) bool {
	return !slices.ContainsFunc(p.ids, func(id string) bool { return !s.find(id).well() })
}

// aligned reports whether all widgets of a pod are on one NUMA node.
func (s *sequence) aligned(p *tenant) bool {
	return !slices.ContainsFunc(p.ids, func(id string) bool { return s.find(id).numa != s.find(p.ids[0]).numa })
}

func (s *sequence) stepAdmit() {
	if s.up {
		s.admit(1 + s.random.IntN(3)/2)
	}
}

// newPod returns the next pod that requests n widgets. In some pods the init container has them, which PodResources
// does not list.
func (s *sequence) newPod(n int64) (protocol.Pod, *tenant) {
	s.count++
	p := pod(fmt.Sprintf("pod%d", s.count), widgetResource, n)
	if s.random.IntN(5) > 0 {
		return p, &tenant{uid: p.UID, container: "main"}
	}
	p.Init, p.Containers = p.Containers, []protocol.Container{{Name: "main"}}
	p.Init[0].Name = "init"
	return p, &tenant{uid: p.UID, container: "init"}
}

// admit sends the kubelet a pod that requests n widgets. The result is nil if the kubelet does not admit it.
func (s *sequence) admit(n int) *tenant {
	must, may := s.fits(n)
	p, who := s.newPod(int64(n))
	if !s.admitted(who, s.kubelet.Admit(within(s.t), p), must, may) {
		return nil
	}
	if len(who.ids) != n || !s.fit(who) {
		s.t.Fatalf("%s asked for %d widgets and has %v, which are not as many, or not all well", who.uid, n, who.ids)
	}
	return who
}

// admitted records the result of an admission.
func (s *sequence) admitted(p *tenant, err error, must, may bool) bool {
	var why *protocol.Rejection
	if errors.As(err, &why) && !must {
		s.say("%s is not admitted: %v", p.uid, why)
		return false
	}
	if err != nil {
		s.t.Fatalf("%s is not admitted: %v", p.uid, err)
	}
	list, err := s.kubelet.Assigned(within(s.t), p.uid, p.container)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, d := range list {
		if other := s.holder(d.ID); other != nil {
			s.t.Fatalf("%s is given %s, which %s has", p.uid, d.ID, other.uid)
		}
		p.ids = append(p.ids, d.ID)
	}
	s.say("%s has %v in %s", p.uid, p.ids, p.container)
	if !may {
		s.t.Fatalf("%s is admitted with %v, which are not to be had", p.uid, p.ids)
	}
	if s.pods = append(s.pods, p); p.container == "init" {
		s.slow(p)
	}
	s.daemon.must(os.Mkdir(s.daemon.cgroup(p.uid), 0o755))
	return true
}

// stepUnplugDuringAdmission unplugs a widget during an admission. The pod may get this widget.
func (s *sequence) stepUnplugDuringAdmission() {
	must, _ := s.fits(1)
	w := s.pick(func(p *part) bool { return p.well() && s.holder(p.id()) == nil })
	if s.proxy == nil || !s.up || !must || w == nil {
		return
	}
	m := []moment{allocateAsked, allocateAnswered}[s.random.IntN(2)]
	s.say("W%d is unplugged during an admission, %s", w.n, m)
	h := s.proxy.hold(m)
	p, who := s.newPod(1)
	result := admitting(s.t, s.kubelet, p)
	h.await(s.t)
	w.slot = 0
	s.apply()
	s.settleOffer()
	h.release()
	if s.admitted(who, <-result, m == allocateAnswered, true) && m == allocateAsked && !s.fit(who) {
		s.t.Fatalf("%s is admitted with %v, of which the daemon knew that it was gone", who.uid, who.ids)
	}
}

// slow marks widgets whose holder only the checkpoint may name. If the kubelet does not write the checkpoint, it may take
// ten minutes until they count as free.
func (s *sequence) slow(p *tenant) {
	for _, id := range p.ids {
		s.find(id).slow = true
	}
}

// any returns one of the pods, or nil.
func (s *sequence) any() *tenant {
	if len(s.pods) == 0 {
		return nil
	}
	return s.pods[s.random.IntN(len(s.pods))]
}

func (s *sequence) stepRun() {
	if p := s.any(); p != nil && s.up {
		s.run(p)
	}
}

// run starts the container of a pod, perhaps again. A restarted kubelet asks no plugin before the daemon has
// registered. A kubelet that has lost the daemon starts no container.
func (s *sequence) run(p *tenant) {
	s.exit(p)
	got, err := s.kubelet.Run(within(s.t), p.uid, p.container)
	s.say("start of %s: %v", p.uid, err)
	if errors.Is(err, ErrDied) || s.serving && s.fit(p) != (err == nil) {
		s.t.Fatalf("start of %s with %v: %v", p.uid, p.ids, err)
	}
	if err != nil {
		return
	}
	p.running = true
	ids := slices.Sorted(slices.Values(p.ids))
	if env := got.Env["METALPLUG_EXAMPLE_ORG_WIDGET"]; env != strings.Join(ids, ",") || len(got.Nodes) != len(ids) {
		s.t.Fatalf("%s has %v and is given %q and %+v", p.uid, ids, env, got.Nodes)
	}
}

func (s *sequence) stepExit() {
	if p := s.any(); p != nil && p.running {
		s.say("the container of %s ends", p.uid)
		s.exit(p)
	}
}

// exit ends the container of a pod, if it runs.
func (s *sequence) exit(p *tenant) {
	if p.running {
		s.kubelet.SetState(p.uid, p.container, protocol.Exited)
		p.running = false
	}
}

func (s *sequence) stepRemove() {
	if p := s.any(); p != nil {
		s.remove(p)
	}
}

// remove ends a pod. A stopped kubelet does not notice that.
func (s *sequence) remove(p *tenant) {
	s.say("%s is removed", p.uid)
	if s.up {
		remove(s.t, s.kubelet, p.uid)
	} else {
		s.kubelet.forget(p.uid)
		s.slow(p)
	}
	s.forget(p)
}

func (s *sequence) forget(p *tenant) {
	s.daemon.must(os.Remove(s.daemon.cgroup(p.uid)))
	s.pods = slices.DeleteFunc(s.pods, func(other *tenant) bool { return other == p })
}

// forgetting is how long the daemon may take to be sure that no pod has a missing device. The daemon queries the kubelet
// every ten seconds. If the kubelet has never listed a device, the allocation may be in progress for half a minute.
const forgetting = time.Minute

// stepForget waits until devices that are gone and free have left the list. It ignores devices that may take minutes.
func (s *sequence) stepForget() {
	if !s.up || !s.serving {
		return
	}
	s.say("what is gone leaves the list")
	if host.KeepsLast {
		p := pod(fmt.Sprintf("last%d", len(s.said)), widgetResource, 0)
		p.Containers[0].Limits = nil
		admit(s.t, s.kubelet, p)
		remove(s.t, s.kubelet, p.UID)
	}
	eventuallyIn(s.t, forgetting, "nothing in the list that is gone", func() error {
		s.alive()
		list := devices(s.t, s.kubelet)
		for _, p := range s.parts {
			if _, listed := list[p.id()]; listed && !p.plugged() && !p.slow && s.holder(p.id()) == nil {
				return fmt.Errorf("W%d is in it", p.n)
			}
		}
		return nil
	})
}

// readmitted records which pods survive a restart of the kubelet. The kubelet rejects a pod whose container does not run if
// a device of the pod is unhealthy or unknown. With the policy restricted, it also rejects a pod with devices on two NUMA
// nodes as soon as one node has enough devices.
func (s *sequence) readmitted(err error) {
	var why *protocol.Rejection
	if err != nil && !errors.As(err, &why) {
		s.t.Fatal(err)
	}
	s.kubelet.mu.Lock()
	there := slices.Clone(s.kubelet.pods)
	s.kubelet.mu.Unlock()
	for _, p := range slices.Clone(s.pods) {
		if slices.ContainsFunc(there, func(other protocol.Pod) bool { return other.UID == p.uid }) {
			continue
		}
		apart := s.policy == "restricted" && !s.aligned(p)
		if !apart && (p.running || s.serving && s.fit(p)) {
			s.t.Fatalf("%s, which runs: %v, is lost with %v: %v", p.uid, p.running, p.ids, err)
		}
		s.say("%s is lost", p.uid)
		s.slow(p)
		s.forget(p)
	}
}
