// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// has waits until the kubelet and metalplugd of a node report that pods have exactly these devices.
func (s *story) has(node *Node, want map[string]string) {
	s.Helper()
	s.await("the devices of "+node.Name+" have other pods", func(ctx context.Context) error { return node.views(ctx, want) })
}

// views returns an error unless the kubelet and metalplugd of a node report that pods have exactly these devices.
func (n *Node) views(ctx context.Context, want map[string]string) error {
	counted, err := n.counted(ctx)
	if err != nil {
		return err
	}
	listed, err := n.listed(ctx)
	if err != nil {
		return err
	}
	if !maps.Equal(want, counted) || !maps.Equal(want, listed) {
		return fmt.Errorf("want %v; kubelet: %v; metalplugd: %v", want, counted, listed)
	}
	return nil
}

// registered waits until the running kubelet of a node counts this number of allocatable widgets. This check is needed
// because a kubelet refuses a pod that it sees before metalplugd has registered. The API server may still show the widgets
// of the previous kubelet.
func (s *story) registered(node *Node, want int) {
	s.Helper()
	s.await("metalplugd has not registered with the kubelet of "+node.Name, func(ctx context.Context) error {
		conn, err := node.podResources()
		if err != nil {
			return err
		}
		defer conn.Close()
		answer, err := podresources.NewPodResourcesListerClient(conn).GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
		if err != nil {
			return err
		}
		var ids []string
		for _, d := range answer.GetDevices() {
			if d.GetResourceName() == string(widget) {
				ids = append(ids, d.GetDeviceIds()...)
			}
		}
		if len(ids) != want {
			return fmt.Errorf("it counts %v", ids)
		}
		return nil
	})
}

func (n *Node) podResources() (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+n.path("var/lib/kubelet/pod-resources/kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// counted returns which pod has which widget according to the kubelet.
func (n *Node) counted(ctx context.Context) (map[string]string, error) {
	conn, err := n.podResources()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, err
	}
	pods := make(map[string]string)
	for _, p := range answer.GetPodResources() {
		for _, c := range p.GetContainers() {
			for _, d := range c.GetDevices() {
				for _, id := range d.GetDeviceIds() {
					pods[id] = p.GetName()
				}
			}
		}
	}
	return pods, nil
}

// listed returns which pod has which widget according to metalplugd.
func (n *Node) listed(ctx context.Context) (map[string]string, error) {
	out, err := n.Ctl(ctx, "list", "-o", "json")
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	var devices []struct {
		ID        string
		Allocated *struct{ Pod string }
	}
	if err := json.Unmarshal([]byte(out), &devices); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	pods := make(map[string]string)
	for _, d := range devices {
		if d.Allocated != nil {
			pods[d.ID] = d.Allocated.Pod
		}
	}
	return pods, nil
}
