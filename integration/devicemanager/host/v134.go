// SPDX-License-Identifier: Apache-2.0

//go:build k8s131 || k8s133 || k8s134

package host

import (
	_ "unsafe" // for go:linkname

	cadvisor "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
)

// newManager is the unexported constructor that devicemanager.NewManagerImpl uses. It takes a path, while the exported
// one always uses /var/lib/kubelet/device-plugins.
//
//go:linkname newManager k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManager(socket string, nodes []cadvisor.Node, store topologymanager.Store) (*devicemanager.ManagerImpl, error)

func startManager(m *devicemanager.ManagerImpl, pods devicemanager.ActivePodsFunc, ready config.SourcesReady, known containermap.ContainerMap, running sets.Set[string]) error {
	return m.Start(pods, ready, known, running)
}

func stopManager(m *devicemanager.ManagerImpl) error { return m.Stop() }

func addHints(t topologymanager.Manager, m *devicemanager.ManagerImpl) { t.AddHintProvider(m) }

func runOptions(m *devicemanager.ManagerImpl, pod *v1.Pod, c *v1.Container) (*devicemanager.DeviceRunContainerOptions, error) {
	return m.GetDeviceRunContainerOptions(pod, c)
}
