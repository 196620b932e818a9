// SPDX-License-Identifier: Apache-2.0

// Package host runs the kubelet's real device manager, with the real topology manager and PodResources server, in
// directories of its own.
//
// Like the kubelet, it reads the checkpoint, cleans the directory, listens, and admits the first batch of pods before its
// sources are ready. A signal ends it like the kubelet. In that case it stops nothing and removes no sockets. A crash of the
// device manager is a crash of the process.
package host

import (
	"cmp"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	cadvisor "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"

	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// source is the only source of pods.
const source = "api"

// Node is a node whose kubelet consists of the device manager. Safe for concurrent use.
type Node struct {
	manager  *devicemanager.ManagerImpl
	topology topologymanager.Manager
	ready    config.SourcesReady
	pods     podList
	admitMu  sync.Mutex // the kubelet admits one pod at a time
	sock     time.Time  // when kubelet.sock accepted connections
}

// Start starts the device manager of a node. The pods of the first batch are admitted later, by FirstBatch.
func Start(o protocol.Options) (*Node, error) {
	n := &Node{ready: config.NewSourcesReady(func(seen sets.Set[string]) bool { return seen.Has(source) })}
	var err error
	if n.topology, err = newTopology(o); err != nil {
		return nil, err
	}
	socket := filepath.Join(o.DevicePlugins, cmp.Or(o.Socket, "kubelet.sock"))
	if n.manager, err = newManager(socket, numaNodes(o.NUMANodes), n.topology); err != nil {
		return nil, fmt.Errorf("create device manager: %w", err)
	}
	addHints(n.topology, n.manager)
	if o.PodResources != "" {
		if err := servePodResources(o.PodResources, &n.pods, n.manager); err != nil {
			return nil, err
		}
	}
	known, running := runtimeView(o.Pods)
	if err := startManager(n.manager, n.pods.GetActivePods, n.ready, known, running); err != nil {
		return nil, fmt.Errorf("start device manager: %w", err)
	}
	n.sock = time.Now()
	return n, nil
}

func newTopology(o protocol.Options) (topologymanager.Manager, error) {
	policy := o.TopologyPolicy
	if policy == "" {
		policy = topologymanager.PolicyNone
	}
	t, err := topologymanager.NewManager(numaNodes(o.NUMANodes), policy, "container", nil)
	if err != nil {
		return nil, fmt.Errorf("create topology manager: %w", err)
	}
	return t, nil
}

func numaNodes(n int) []cadvisor.Node {
	nodes := make([]cadvisor.Node, max(n, 1))
	for i := range nodes {
		nodes[i].Id = i
	}
	return nodes
}

// Listening returns the time when kubelet.sock accepted connections.
func (n *Node) Listening() time.Time { return n.sock }

// FirstBatch admits the pods that were on the node before the kubelet started, like the kubelet. The device manager
// recognises running containers only until the sources are ready. FirstBatch calls admitted for each pod and makes
// sources ready at the end.
func (n *Node) FirstBatch(pods []protocol.Pod, admitted func(uid string, why *protocol.Rejection)) {
	api := make([]*v1.Pod, 0, len(pods))
	for _, p := range pods {
		pod := newPod(p)
		n.pods.add(pod) // all pods are added first, because otherwise the first admission would free the devices of the others
		api = append(api, pod)
	}
	for _, pod := range api {
		admitted(string(pod.UID), n.admit(pod))
	}
	n.ready.AddSource(source)
}

// Admit admits a new pod. It returns a rejection, or nil.
func (n *Node) Admit(p protocol.Pod) *protocol.Rejection {
	pod := newPod(p)
	n.pods.add(pod)
	return n.admit(pod)
}

func (n *Node) admit(pod *v1.Pod) *protocol.Rejection {
	n.admitMu.Lock()
	defer n.admitMu.Unlock()
	result := n.topology.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
	if result.Admit {
		return nil
	}
	n.pods.remove(string(pod.UID)) // the phase of the pod is Failed now
	return &protocol.Rejection{Reason: result.Reason, Message: result.Message}
}

// Remove ends a pod. The device manager notices this at its next check, as usual.
func (n *Node) Remove(uid string) { n.pods.remove(uid) }

// Stop stops the device manager correctly, which a real kubelet never does.
func (n *Node) Stop() error { return stopManager(n.manager) }
