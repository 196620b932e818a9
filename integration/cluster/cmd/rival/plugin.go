// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// plugin is a minimal device plugin.
type plugin struct {
	api.UnimplementedDevicePluginServer
	devices []*api.Device
}

// servePlugin serves n devices of a resource, and registers the resource with the kubelet of the node. It returns after
// SIGTERM or an error.
func servePlugin(resource string, n int) error {
	p := &plugin{}
	for i := range n {
		p.devices = append(p.devices, &api.Device{ID: fmt.Sprintf("rival-%d", i), Health: api.Healthy})
	}
	endpoint := fmt.Sprintf("rival-%d.sock", os.Getpid())
	l, err := net.Listen("unix", filepath.Join(api.DevicePluginPath, endpoint))
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	api.RegisterDevicePluginServer(s, p)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conn, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := api.NewRegistrationClient(conn).Register(context.Background(), &api.RegisterRequest{
		Version: api.Version, Endpoint: endpoint, ResourceName: resource,
	}); err != nil {
		return err
	}
	fmt.Println("registered")
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	select {
	case err := <-served:
		return err
	case <-stop:
		s.Stop() // also removes the socket
		return nil
	}
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, s api.DevicePlugin_ListAndWatchServer) error {
	if err := s.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

// Allocate passes the devices to each container in a variable.
func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, c := range request.GetContainerRequests() {
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{"RIVAL_DEVICES": fmt.Sprint(c.GetDevicesIds())},
		})
	}
	return answer, nil
}
