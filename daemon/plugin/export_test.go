// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// RemoveStale exports removeStale for tests.
var RemoveStale = removeStale

// Others exports others for tests.
func (w *Watch) Others() (live []int, ended, events int) { return w.otherPlugins() }

// Answer returns what a container gets for these devices.
func (e *Endpoint) Answer(devices []*inventory.Status) (*pluginapi.ContainerAllocateResponse, error) {
	return service{Endpoint: e}.answer(devices)
}
