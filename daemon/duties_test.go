// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
)

// counting is a kubelet that counts a device of somebody else.
type counting struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (counting) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest,
) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{Devices: []*podresources.ContainerDevices{
		{ResourceName: "t/a", DeviceIds: []string{"x"}}, {ResourceName: "t/b", DeviceIds: []string{"y"}},
	}}, nil
}

// besides is a daemon that offers nothing, beside that kubelet.
func besides(t *testing.T) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{}
	d.Config.Paths.PodResources = filepath.Join(dir, "pods.sock")
	l, err := net.Listen("unix", d.Config.Paths.PodResources)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, counting{})
	go server.Serve(l)
	t.Cleanup(server.Stop)
	d.endpoints = &endpoints{running: map[string]*running{
		"t/a": {endpoint: &plugin.Endpoint{Resource: plugin.Resource{Name: "t/a"}, Inventory: inventory.New(inventory.Options{Host: &device.Host{}})}},
	}}
	return d
}

// Of a resource that is ours it is told which device is not, and of no other.
func TestCounted(t *testing.T) {
	want := control.Counted{Allocatable: map[string]int{"t/a": 1, "t/b": 1}, Foreign: map[string]string{"t/a": "x"}}
	if got, err := besides(t).counted(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

// Which endpoints are told that another one has served their resource.
func TestFollowers(t *testing.T) {
	for _, second := range []bool{false, true} {
		e := &endpoints{second: second, running: make(map[string]*running), served: make(map[string]bool), ctx: t.Context()}
		e.failed, e.changed = make(chan error, 1), make(chan struct{}, 1)
		e.make = func(r config.Resource) *plugin.Endpoint {
			dir := strings.Repeat("x", 200) // too long for a socket, so that it does not run
			return &plugin.Endpoint{Resource: plugin.Resource{Name: r.Name}, Dir: dir, Log: slog.New(slog.DiscardHandler)}
		}
		for i, step := range []struct{ resources, follow string }{
			{"a", ""}, {"a b", ""}, {"b", ""}, {"a b", "a"}, {"", ""}, {"a b c", "a b"},
		} {
			var resources []config.Resource
			for _, name := range strings.Fields(step.resources) {
				resources = append(resources, config.Resource{Name: name})
			}
			before := e.all()
			e.apply(resources, func() {})
			for name, endpoint := range e.all() {
				want := second || slices.Contains(strings.Fields(step.follow), name)
				if endpoint != before[name] && endpoint.Restarted != want {
					t.Errorf("a second daemon %v, step %d: %s follows another: %v", second, i+1, name, !want)
				}
			}
		}
		e.stopAll()
	}
}

func TestStatusLine(t *testing.T) {
	snapshot := &inventory.Snapshot{
		Offers: map[string]*inventory.Offer{
			"a/x": {Devices: []*inventory.Status{{Verdict: inventory.Verdict{Healthy: true}}, {}}},
			"a/y": {Devices: []*inventory.Status{{Verdict: inventory.Verdict{Healthy: true}}}},
		},
		Others: []*inventory.Status{{}},
	}
	const counts = "2 devices healthy, 1 unhealthy, 1 seen and not offered; kubelet connected to 1 of 2 resources"
	for _, c := range []struct{ refused, want string }{
		{"", counts},
		{"/etc/a.toml:2: class: is missing", "the configuration was not reloaded: /etc/a.toml:2: class: is missing; " + counts},
		{"a:1: one\nb:2: two", "the configuration was not reloaded: a:1: one; " + counts},
	} {
		if got := statusLine(snapshot, 1, 2, c.refused); got != c.want {
			t.Errorf("refused %q:\n got %q\nwant %q", c.refused, got, c.want)
		}
	}
}
