// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// gadget is the resource of the minimal plugin.
const gadget = "example.org/gadget"

// rival is a minimal device plugin. It checks the harness, and its times are printed for comparison with those of
// metalplugd.
type rival struct {
	api.UnimplementedDevicePluginServer
	dir      string
	resource string
	server   *grpc.Server
	endpoint string
	listener *net.UnixListener
	lists    chan []*api.Device // the next lists to send on the open stream
	ended    chan struct{}      // a stream ended
	first    []*api.Device      // the first list on each stream
	allocate func()             // called during each Allocate
	prestart func() error
}

// newRival serves a plugin in the kubelet's directory without registering it.
func newRival(t *testing.T, dir string, first ...*api.Device) *rival {
	t.Helper()
	r := &rival{
		dir: dir, resource: gadget, first: first, lists: make(chan []*api.Device), ended: make(chan struct{}, 100),
		allocate: func() {}, prestart: func() error { return nil },
	}
	t.Cleanup(func() {
		if r.server != nil {
			r.server.Stop()
		}
	})
	return r
}

// register listens on a new socket and registers it.
func (r *rival) register(ctx context.Context) error {
	if r.server != nil {
		r.server.Stop()
	}
	r.endpoint = fmt.Sprintf("rival-%d.sock", time.Now().UnixNano())
	var err error
	r.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(r.dir, r.endpoint), Net: "unix"})
	if err != nil {
		return err
	}
	r.server = grpc.NewServer()
	api.RegisterDevicePluginServer(r.server, r)
	go func(server *grpc.Server, l net.Listener) { _ = server.Serve(l) }(r.server, r.listener)
	return registerAs(ctx, r.dir, r.endpoint, r.resource)
}

// kill ends the plugin as a crash would. Its socket remains.
func (r *rival) kill() {
	r.listener.SetUnlinkOnClose(false)
	r.server.Stop()
}

// registerAs registers an endpoint for a resource.
func registerAs(ctx context.Context, dir, endpoint, resource string) error {
	kubelet := filepath.Join(dir, "kubelet.sock")
	if err := accepting(ctx, kubelet); err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: endpoint, ResourceName: resource,
	})
	return err
}

// accepting waits until a socket accepts connections. A server binds its socket before it listens, and gRPC would wait
// long after a refused connection.
func accepting(ctx context.Context, path string) error {
	for tick := time.Tick(time.Millisecond); ; {
		conn, err := net.Dial("unix", path)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return err
		}
	}
}

func (r *rival) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{PreStartRequired: true}, nil
}

func (r *rival) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	defer func() { r.ended <- struct{}{} }()
	for list := r.first; ; {
		if err := stream.Send(&api.ListAndWatchResponse{Devices: list}); err != nil {
			return err
		}
		select {
		case list = <-r.lists:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (r *rival) Allocate(_ context.Context, req *api.AllocateRequest) (*api.AllocateResponse, error) {
	r.allocate()
	out := &api.AllocateResponse{}
	for range req.ContainerRequests {
		out.ContainerResponses = append(out.ContainerResponses, &api.ContainerAllocateResponse{Envs: map[string]string{"GADGET": "yes"}})
	}
	return out, nil
}

func (r *rival) PreStartContainer(context.Context, *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	return &api.PreStartContainerResponse{}, r.prestart()
}

// onNode returns a device on a NUMA node, or on none if the number is negative.
func onNode(id string, node int64) *api.Device {
	d := &api.Device{ID: id, Health: api.Healthy}
	if node >= 0 {
		d.Topology = &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: node}}}
	}
	return d
}
