// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/inventory"
)

func TestCDINamesTakeThePlaceOfNodes(t *testing.T) {
	b := newBench(t)
	b.endpoint.Resource.CDI = func(devices []*inventory.Status) ([]string, error) {
		return []string{"example.com/x=" + devices[0].Device.ID}, nil
	}
	answer, err := b.client().Allocate(t.Context(), &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{"node-A-widget"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	container := answer.GetContainerResponses()[0]
	if names := container.GetCdiDevices(); len(names) != 1 || names[0].GetName() != "example.com/x=node-A-widget" {
		t.Errorf("the names are %v", names)
	}
	if len(container.GetDevices()) > 0 || len(container.GetEnvs()) != 1 {
		t.Errorf("beside its name the device is given as %v, %v", container.GetDevices(), container.GetEnvs())
	}
}

func TestNoCDINameNoContainer(t *testing.T) {
	b := newBench(t)
	b.endpoint.Resource.CDI = func([]*inventory.Status) ([]string, error) { return nil, errors.New("disk full") }
	_, allocate := b.client().Allocate(t.Context(), &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{"node-A-widget"}}},
	})
	_, preStart := b.client().PreStartContainer(t.Context(), &pluginapi.PreStartContainerRequest{
		DevicesIds: []string{"node-A-widget"},
	})
	for call, err := range map[string]error{"Allocate": allocate, "PreStartContainer": preStart} {
		want := "node-A-widget: cannot be given out by CDI name: disk full"
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", call, err)
		}
	}
}
