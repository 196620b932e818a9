// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	kubelet "github.com/metalplug/metalplug/integration/kubelettest"
)

// measureRestarts measures the time from the kubelet's start, which empties its directory and creates kubelet.sock, until it
// knows the devices. The floor is a minimal plugin in a separate process.
func (b *bench) measureRestarts() (_ []result, err error) {
	s, err := b.newSite(few, 1)
	if err != nil {
		return nil, err
	}
	p, _, err := b.launch(s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	floorDir, err := b.subdir("r")
	if err != nil {
		return nil, err
	}
	floor, err := b.spawn("/proc/self/exe", nil, registerVerb, floorDir)
	if err != nil {
		return nil, err
	}
	defer func() {
		floor.Process.Kill()
		floor.Wait()
	}()
	time.Sleep(500 * time.Millisecond) // the plugin needs time to watch the directory
	var ours, theirs samples
	for range b.countSamples(100) {
		took, err := restart(s.plugins)
		if err != nil {
			return nil, err
		}
		ours = append(ours, took)
		took, err = restart(floorDir)
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, floor.said())
		}
		theirs = append(theirs, took)
	}
	return milliseconds("kubelet.sock created to devices visible", ours, theirs, map[int]float64{50: 10, 99: 10}), nil
}

// restart starts a new kubelet and returns the time until it knew the devices. Then it stops the kubelet.
func restart(dir string) (time.Duration, error) {
	begun := time.Now()
	k, err := kubelet.Start(dir)
	if err != nil {
		return 0, err
	}
	err = waitAllocatable(k, few)
	took := time.Since(begun)
	time.Sleep(50 * time.Millisecond)
	k.Stop()
	time.Sleep(time.Duration(100+rand.IntN(100)) * time.Millisecond)
	return took, err
}

// waitAllocatable waits until the kubelet knows that many healthy devices.
func waitAllocatable(k *kubelet.Kubelet, want int) error {
	limit := time.After(patience)
	for {
		changed, known := k.Changed(), 0
		for _, r := range k.Resources() {
			known += r.Allocatable
		}
		if known == want {
			return nil
		}
		select {
		case <-changed:
		case <-limit:
			return fmt.Errorf("wait for %d devices: the kubelet knows %d", want, known)
		}
	}
}

// registerVerb is the argument with which the program runs the minimal plugin, which gives the floor for restarts of the
// kubelet.
const registerVerb = "register"

// register is a minimal plugin that waits for kubelet.sock, serves and registers.
func register(dir string) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := watcher.Add(dir); err != nil {
		return err
	}
	var server *grpc.Server
	for event := range watcher.Events {
		if !event.Has(fsnotify.Create) || filepath.Base(event.Name) != "kubelet.sock" {
			continue
		}
		if server != nil {
			server.Stop()
		}
		if server, err = serveAndRegister(dir); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		}
	}
	return errors.New("the watch has ended")
}

func serveAndRegister(dir string) (*grpc.Server, error) {
	path := filepath.Join(dir, "floor.sock")
	os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, &registered{})
	go server.Serve(l) // returns when the server is stopped
	// The kubelet binds its socket before it listens.
	conn, err := grpc.NewClient("passthrough:///kubelet", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			for {
				c, err := net.Dial("unix", filepath.Join(dir, "kubelet.sock"))
				if err == nil || ctx.Err() != nil {
					return c, err
				}
				time.Sleep(100 * time.Microsecond)
			}
		}))
	if err != nil {
		return server, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: "floor.sock", ResourceName: resource,
	})
	return server, err
}

// registered is the service of the minimal plugin.
type registered struct {
	pluginapi.UnimplementedDevicePluginServer
}

// GetDevicePluginOptions returns no options.
func (*registered) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

// ListAndWatch sends as many devices as the daemon.
func (*registered) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	var list pluginapi.ListAndWatchResponse
	for i := range few {
		list.Devices = append(list.Devices, &pluginapi.Device{ID: fmt.Sprintf("node-%d", i), Health: pluginapi.Healthy})
	}
	if err := stream.Send(&list); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}
