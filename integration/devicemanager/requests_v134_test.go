// SPDX-License-Identifier: Apache-2.0

//go:build !k8s131 && !k8s133

package devicemanager

import api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

// allocateRequest asks for devices for one container.
func allocateRequest(ids []string) *api.AllocateRequest {
	return &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}}
}

// preStartRequest announces the start of a container.
func preStartRequest(ids []string) *api.PreStartContainerRequest {
	return &api.PreStartContainerRequest{DevicesIds: ids}
}
