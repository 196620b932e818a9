// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"

	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// podList is the kubelet's pod manager. It holds the pods that have not ended, and is safe for concurrent use.
type podList struct {
	mu   sync.RWMutex
	pods []*v1.Pod
}

// GetActivePods returns the pods for the device manager and PodResources.
func (l *podList) GetActivePods() []*v1.Pod {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return append([]*v1.Pod(nil), l.pods...)
}

// GetPods returns the active pods too, because an ended pod is removed.
func (l *podList) GetPods() []*v1.Pod { return l.GetActivePods() }

// GetPodByName implements PodResources' Get.
func (l *podList) GetPodByName(namespace, name string) (*v1.Pod, bool) {
	for _, p := range l.GetActivePods() {
		if p.Namespace == namespace && p.Name == name {
			return p, true
		}
	}
	return nil, false
}

func (l *podList) add(pod *v1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods = append(l.pods, pod)
}

func (l *podList) remove(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := make([]*v1.Pod, 0, len(l.pods))
	for _, p := range l.pods {
		if string(p.UID) != uid {
			kept = append(kept, p)
		}
	}
	l.pods = kept
}

func (l *podList) find(uid string) (*v1.Pod, error) {
	for _, p := range l.GetActivePods() {
		if string(p.UID) == uid {
			return p, nil
		}
	}
	return nil, fmt.Errorf("find pod %s: not on this node", uid)
}

func (l *podList) container(uid, name string) (*v1.Pod, *v1.Container, error) {
	pod, err := l.find(uid)
	if err != nil {
		return nil, nil, err
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return pod, &list[i], nil
			}
		}
	}
	return nil, nil, fmt.Errorf("find container %s of pod %s: no such container", name, uid)
}

// newPod returns the API object of a pod.
func newPod(p protocol.Pod) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: meta.ObjectMeta{UID: types.UID(p.UID), Namespace: p.Namespace, Name: p.Name},
		Spec:       v1.PodSpec{InitContainers: newContainers(p.Init), Containers: newContainers(p.Containers)},
	}
}

func newContainers(list []protocol.Container) []v1.Container {
	out := make([]v1.Container, 0, len(list))
	for _, c := range list {
		limits := v1.ResourceList{}
		for name, n := range c.Limits {
			limits[v1.ResourceName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
		}
		api := v1.Container{Name: c.Name, Resources: v1.ResourceRequirements{Limits: limits, Requests: limits}}
		if c.Restartable {
			always := v1.ContainerRestartPolicyAlways
			api.RestartPolicy = &always
		}
		out = append(out, api)
	}
	return out
}

// runtimeView returns the answer of the container runtime to a starting kubelet. It lists the existing containers and
// the running ones.
func runtimeView(pods []protocol.Pod) (containermap.ContainerMap, sets.Set[string]) {
	known, running := containermap.NewContainerMap(), sets.New[string]()
	for _, p := range pods {
		for _, c := range append(append([]protocol.Container(nil), p.Init...), p.Containers...) {
			if c.State == protocol.Absent {
				continue
			}
			id := p.UID + "/" + c.Name
			known.Add(p.UID, c.Name, id)
			if c.State == protocol.Running {
				running.Insert(id)
			}
		}
	}
	return known, running
}
