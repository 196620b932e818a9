//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// kubeletProgram is the kubelet's device manager as a program. integration/devicemanager contains it and documents its
// messages.
const kubeletProgram = "/usr/local/bin/dm"

// Kubelet is a simulated kubelet in the machine.
type Kubelet struct {
	*Stream
	last int // ID of the last request
}

// Device is a device in the records of the device manager.
type Device struct {
	Resource string `json:"resource"`
	ID       string `json:"id"`
	Health   string `json:"health"`
}

// Counts are the counts of a resource in the node's status.
type Counts struct {
	Capacity    int64 `json:"capacity"`
	Allocatable int64 `json:"allocatable"`
}

// Pod is a pod with one container that requests devices.
type Pod struct {
	UID    string
	Limits map[string]int64
}

// said is one line of the device manager's output.
type said struct {
	ID        int               `json:"id"`
	Event     string            `json:"event"`
	Time      time.Time         `json:"time"`
	Error     string            `json:"error"`
	Rejected  json.RawMessage   `json:"rejected"`
	Resources map[string]Counts `json:"resources"`
	Devices   []Device          `json:"devices"`
	Run       struct {
		Env   map[string]string `json:"env"`
		Nodes []struct {
			Host string `json:"host"`
		} `json:"nodes"`
	} `json:"run"`
}

// StartKubelet starts the simulated kubelet, and returns when kubelet.sock accepts connections. Stop ends it like a
// crash, so its files remain.
func (m *Machine) StartKubelet() *Kubelet {
	m.t.Helper()
	if m.Try("test", "-x", kubeletProgram).Code != 0 {
		m.Push(Build(m.t, "integration/devicemanager/cmd/dm", false), kubeletProgram)
	}
	m.Run("mkdir", "-p", "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources")
	k := &Kubelet{Stream: m.Start(kubeletProgram, "--watch")}
	m.kubelet = k
	if _, err := k.Await(0, commandTimeout, func(l Line) bool { return decode(l).Event == "listening" }); err != nil {
		m.t.Fatalf("start kubelet: %v\n%s", err, k.Text(0))
	}
	return k
}

// decode parses a line. For a line that is not JSON, such as a log line, it returns the zero value.
func decode(l Line) said {
	var s said
	_ = json.Unmarshal([]byte(l.Text), &s)
	return s
}

// Capacity returns the counts in the node's status now.
func (k *Kubelet) Capacity() map[string]Counts { return k.ask("capacity", nil).Resources }

// Devices returns the devices of a resource, healthy or not.
func (k *Kubelet) Devices(resource string) []Device {
	k.m.t.Helper()
	var list []Device
	for _, d := range k.ask("devices", nil).Devices {
		if d.Resource == resource {
			list = append(list, d)
		}
	}
	return list
}

// Healthy returns the IDs of the healthy devices of a resource.
func (k *Kubelet) Healthy(resource string) []string {
	k.m.t.Helper()
	var ids []string
	for _, d := range k.Devices(resource) {
		if d.Health == "Healthy" {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

// AwaitAllocatable waits until the device manager reports, after a mark, the given number of allocatable devices of a
// resource. It returns the time of that report.
func (k *Kubelet) AwaitAllocatable(from int, resource string, want int64, timeout time.Duration) (time.Time, error) {
	return k.AwaitAllocatableSince(time.Time{}, from, resource, want, timeout)
}

// AwaitAllocatableSince is like AwaitAllocatable, for reports after a given time.
func (k *Kubelet) AwaitAllocatableSince(since time.Time, from int, resource string, want int64, timeout time.Duration) (time.Time, error) {
	l, err := k.Await(from, timeout, func(l Line) bool {
		s := decode(l)
		return s.Event == "capacity" && s.Resources[resource].Allocatable == want && s.Time.After(since)
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("%d allocatable %s: %w\nsaid:\n%s", want, resource, err, k.Text(from))
	}
	return decode(l).Time, nil
}

// Allocatables returns the numbers of allocatable devices of a resource that the device manager has reported since a
// mark.
func (k *Kubelet) Allocatables(from int, resource string) []int64 {
	return k.AllocatablesSince(time.Time{}, from, resource)
}

// AllocatablesSince is like Allocatables, for reports after a given time.
func (k *Kubelet) AllocatablesSince(since time.Time, from int, resource string) []int64 {
	var all []int64
	for _, c := range k.CountsSince(since, from, resource) {
		all = append(all, c.Allocatable)
	}
	return all
}

// CountsSince returns all counts of a resource since a mark and a given time.
func (k *Kubelet) CountsSince(since time.Time, from int, resource string) []Counts {
	var all []Counts
	for _, l := range k.Lines(from) {
		if s := decode(l); s.Event == "capacity" && s.Time.After(since) {
			all = append(all, s.Resources[resource])
		}
	}
	return all
}

// Listening returns the time when kubelet.sock accepted connections.
func (k *Kubelet) Listening() time.Time {
	for _, l := range k.Lines(0) {
		if s := decode(l); s.Event == "listening" {
			return s.Time
		}
	}
	return time.Time{}
}

// RunPod admits a pod and starts its container. It returns the device nodes and variables that the container gets.
func (k *Kubelet) RunPod(p Pod) (nodes []string, env map[string]string) {
	k.m.t.Helper()
	k.AdmitPod(p)
	nodes, env, err := k.TryPod(p)
	if err != nil {
		k.m.t.Fatal(err)
	}
	return nodes, env
}

// startTries is how often TryPod tries to start a container. In an emulated machine, a reset and an erasure may take longer
// than the kubelet waits.
const startTries = 4

// TryPod starts the container of a pod, with the retries of a kubelet. It returns the last error.
func (k *Kubelet) TryPod(p Pod) (nodes []string, env map[string]string, err error) {
	k.m.t.Helper()
	for range startTries {
		if nodes, env, err = k.StartPod(p); err == nil || !strings.Contains(err.Error(), "deadline exceeded") {
			return nodes, env, err
		}
	}
	return nodes, env, err
}

// cgroup returns the cgroup of a pod for a kubelet with the cgroup driver "cgroupfs".
func (p Pod) cgroup() string { return "/sys/fs/cgroup/kubepods/pod" + p.UID }

// AdmitPod admits a pod. The pod gets its devices and a cgroup.
func (k *Kubelet) AdmitPod(p Pod) {
	k.m.t.Helper()
	k.m.Run("mkdir", "-p", p.cgroup())
	k.ask("admit", map[string]any{"pod": map[string]any{
		"uid": p.UID, "namespace": "default", "name": p.UID,
		"containers": []any{map[string]any{"name": "main", "limits": p.Limits}},
	}})
}

// StartPod starts the container of a pod, possibly again. The kubelet would show the error in the status of the pod.
func (k *Kubelet) StartPod(p Pod) (nodes []string, env map[string]string, err error) {
	k.m.t.Helper()
	s := k.answer("run", map[string]any{"uid": p.UID, "container": "main"})
	if s.Error != "" {
		return nil, nil, fmt.Errorf("start %s: %s", p.UID, s.Error)
	}
	for _, n := range s.Run.Nodes {
		nodes = append(nodes, n.Host)
	}
	return nodes, s.Run.Env, nil
}

// RemovePod ends a pod. Its cgroup is removed too, unless it still has a process.
func (k *Kubelet) RemovePod(p Pod) {
	k.m.t.Helper()
	k.ask("remove", map[string]any{"uid": p.UID})
	k.m.Try("find", p.cgroup(), "-depth", "-type", "d", "-exec", "rmdir", "{}", "+")
}

// ask sends a request and returns its answer, which must not be an error.
func (k *Kubelet) ask(op string, request map[string]any) said {
	k.m.t.Helper()
	s := k.answer(op, request)
	if s.Error != "" || s.Rejected != nil {
		k.m.t.Fatalf("ask the kubelet to %s: %s%s", op, s.Error, s.Rejected)
	}
	return s
}

// answer sends one request and returns its answer.
func (k *Kubelet) answer(op string, request map[string]any) said {
	k.m.t.Helper()
	k.last++
	if request == nil {
		request = make(map[string]any)
	}
	request["id"], request["op"] = k.last, op
	text, err := json.Marshal(request)
	if err != nil {
		k.m.t.Fatalf("ask the kubelet: %v", err)
	}
	id, from := k.last, k.Mark()
	k.Send(string(text))
	l, err := k.Await(from, commandTimeout, func(l Line) bool { return decode(l).ID == id })
	if err != nil {
		k.m.t.Fatalf("ask the kubelet to %s: %v\n%s", op, err, k.Text(from))
	}
	return decode(l)
}
