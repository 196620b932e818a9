// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/checkpoint"
)

// podsOf groups the answer of PodResources by device ID. The answer lists the restartable init containers and the app containers
// of active pods. Both the answer and the result contain the devices of all plugins.
func podsOf(answer *podresources.ListPodResourcesResponse) map[string][]api.Pod {
	by := make(map[string][]api.Pod)
	for _, pod := range answer.GetPodResources() {
		for _, container := range pod.GetContainers() {
			holder := api.Pod{Namespace: pod.GetNamespace(), Name: pod.GetName(), Container: container.GetName()}
			for _, d := range container.GetDevices() {
				for _, share := range d.GetDeviceIds() {
					by[share] = append(by[share], holder)
					by[checkpoint.Parent(share)] = append(by[checkpoint.Parent(share)], holder)
				}
			}
		}
	}
	for id, holders := range by { // the kubelet lists a device with two NUMA nodes twice
		slices.SortFunc(holders, func(a, b api.Pod) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Container, b.Container))
		})
		by[id] = slices.Compact(holders)
	}
	return by
}

// ErrNotCounted means that the kubelet does not report which devices it counts. Kubelets before 1.21 cannot report the devices,
// and kubelets from 1.21 to 1.27 need the feature gate KubeletPodResourcesGetAllocatable.
var ErrNotCounted = errors.New("the kubelet does not answer GetAllocatableResources, so metalplugd cannot detect another plugin " +
	"with one of its resources")

// Allocatable asks the PodResources service which devices the kubelet counts as healthy. The parameter socket is the path of the
// service's socket. The result maps each resource to the sorted IDs of its devices, or of its shares if it has shares.
// Allocatable blocks for at most five seconds while it waits for the kubelet.
func Allocatable(ctx context.Context, socket string) (map[string][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, podResourcesLimit)
	defer cancel()
	client, err := podResources(socket)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	answer, err := podresources.NewPodResourcesListerClient(client).GetAllocatableResources(ctx,
		&podresources.AllocatableResourcesRequest{})
	// In Kubernetes 1.27, the error is "Pod Resources API GetAllocatableResources disabled"
	// (pkg/kubelet/apis/podresources/server_v1.go).
	if s := status.Convert(err); s.Code() == codes.Unimplemented || s.Code() == codes.Unknown && strings.Contains(s.Message(), "disabled") {
		return nil, fmt.Errorf("query %s: %w", socket, ErrNotCounted)
	}
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", socket, CleanError(err, podResourcesLimit))
	}
	ids := make(map[string][]string)
	for _, d := range answer.GetDevices() {
		ids[d.GetResourceName()] = append(ids[d.GetResourceName()], d.GetDeviceIds()...)
	}
	for resource, all := range ids { // the kubelet lists a device with two NUMA nodes twice
		slices.Sort(all)
		ids[resource] = slices.Compact(all)
	}
	return ids, nil
}

// podResources returns a client connection to the kubelet's PodResources service. podResources connects at the first call of the
// service.
func podResources(socket string) (*grpc.ClientConn, error) {
	client, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(podResourcesSize)))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	return client, nil
}
