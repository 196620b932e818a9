// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/kubelet"
)

// pods is the list of the kubelet's pods in these tests.
type pods struct{ books }

func container(name string, ids ...string) *podresources.ContainerResources {
	return &podresources.ContainerResources{Name: name, Devices: []*podresources.ContainerDevices{
		{ResourceName: "t/a", DeviceIds: ids}, {ResourceName: "t/a", DeviceIds: ids}, // the kubelet lists a resource once for each NUMA node
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
	p := api.Pod{Namespace: "n", Name: "p", Container: "c"}
	z := api.Pod{Namespace: "n", Name: "z", Container: "c"}
	want := map[string][]api.Pod{
		"shared": {p, z}, "shared::0": {p}, "shared::1": {z},
		"own": {{Namespace: "n", Name: "p", Container: "d"}},
	}
	if got := h.Pods; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// uncounted is a kubelet that does not report its device list.
type uncounted struct {
	podresources.UnimplementedPodResourcesListerServer
	err error // nil if it does not support the query
}

func (u uncounted) GetAllocatableResources(ctx context.Context, r *podresources.AllocatableResourcesRequest,
) (*podresources.AllocatableResourcesResponse, error) {
	if u.err == nil {
		return u.UnimplementedPodResourcesListerServer.GetAllocatableResources(ctx, r)
	}
	return nil, u.err
}

// A kubelet before 1.21, or before 1.28 with a feature gate off, never reports its device list. Other errors differ
// from ErrNotCounted.
func TestNotCounted(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, true},
		{errors.New("Pod Resources API GetAllocatableResources disabled"), true},
		{status.Error(codes.ResourceExhausted, "rejected by rate limit"), false},
		{errors.New("failed to list devices"), false},
	} {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		podresources.RegisterPodResourcesListerServer(server, uncounted{err: c.err})
		go server.Serve(l)
		if _, err := kubelet.Allocatable(t.Context(), socket); err == nil || errors.Is(err, kubelet.ErrNotCounted) != c.want {
			t.Errorf("%v: %v, want not counted %v", c.err, err, c.want)
		}
		server.Stop()
	}
}

func TestAllocatable(t *testing.T) {
	server, h := serveBooks(t, &pods{})
	got, err := kubelet.Allocatable(t.Context(), h.Socket)
	if want := map[string][]string{"t/a": {"a", "b"}, "t/b": {"x"}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	server.Stop()
	if _, err := kubelet.Allocatable(t.Context(), h.Socket); err == nil || !strings.Contains(err.Error(), h.Socket) {
		t.Errorf("error %v, want one that names the socket", err)
	}
}
