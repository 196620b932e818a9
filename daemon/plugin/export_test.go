// SPDX-License-Identifier: Apache-2.0

package plugin

import pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

// RemoveStale is removeStale, for the tests.
var RemoveStale = removeStale

// Service is what the kubelet talks to, without a socket, for tests with a clock of their own.
func (e *Endpoint) Service() pluginapi.DevicePluginServer {
	return service{Endpoint: e, places: &places{}}
}
