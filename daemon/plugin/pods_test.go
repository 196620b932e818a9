// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metalplug/metalplug/daemon/plugin"
)

// pods is what the kubelet says of its pods in these tests.
type pods struct{ books }

func container(name string, ids ...string) *podresources.ContainerResources {
	return &podresources.ContainerResources{Name: name, Devices: []*podresources.ContainerDevices{
		{ResourceName: "t/a", DeviceIds: ids}, {ResourceName: "t/a", DeviceIds: ids}, // by NUMA node
	}}
}

func (*pods) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{
		{Namespace: "n", Name: "z", Containers: []*podresources.ContainerResources{container("c", "shared::1")}},
		{Namespace: "n", Name: "p", Containers: []*podresources.ContainerResources{container("c", "shared::0"), container("d", "own")}},
	}}, nil
}

func (*pods) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest,
) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{Devices: slices.Concat(
		container("", "a", "b").Devices, []*podresources.ContainerDevices{{ResourceName: "t/b", DeviceIds: []string{"x"}}},
	)}, nil
}

func TestPods(t *testing.T) {
	_, h := serveBooks(t, &pods{})
	if _, err := h.Ask(t.Context(), []string{"own"}); err != nil {
		t.Fatal(err)
	}
	p := plugin.Pod{Namespace: "n", Name: "p", Container: "c"}
	z := plugin.Pod{Namespace: "n", Name: "z", Container: "c"}
	want := map[string][]plugin.Pod{
		"shared": {p, z}, "shared::0": {p}, "shared::1": {z},
		"own": {{Namespace: "n", Name: "p", Container: "d"}},
	}
	if got := h.Pods(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestAllocatable(t *testing.T) {
	server, h := serveBooks(t, &pods{})
	got, err := plugin.Allocatable(t.Context(), h.Socket)
	if want := map[string][]string{"t/a": {"a", "b"}, "t/b": {"x"}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	server.Stop()
	if _, err := plugin.Allocatable(t.Context(), h.Socket); err == nil || !strings.Contains(err.Error(), h.Socket) {
		t.Errorf("error %v, want one that names the socket", err)
	}
}
