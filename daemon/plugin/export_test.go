// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// RemoveStale is removeStale, for the tests.
var RemoveStale = removeStale

// Others is others, for the tests.
func (w *Watch) Others() (live []int, ended, events int) { return w.others() }

// Service is what the kubelet talks to, without a socket, for tests with a clock of their own.
func (e *Endpoint) Service() pluginapi.DevicePluginServer {
	return service{Endpoint: e, places: &places{}}
}

// Answer is what a container gets with these devices.
func (e *Endpoint) Answer(devices []*inventory.Status) (*pluginapi.ContainerAllocateResponse, error) {
	return service{Endpoint: e}.answer(devices)
}
