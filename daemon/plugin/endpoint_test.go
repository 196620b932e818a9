// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/daemon/statefile"
	"github.com/metalplug/metalplug/daemon/sysfs"
	kubelet "github.com/metalplug/metalplug/integration/kubelettest"
	"github.com/metalplug/metalplug/integration/udevtest"
)

const (
	resource = "example.org/widget"
	patience = 20 * time.Second
	widget   = `P: /devices/virtual/widget/widget0
N: widget0
E: DEVNAME=/dev/widget0
E: SUBSYSTEM=widget
E: ID_SERIAL=A
E: ID_SERIAL_SHORT=A
E: MAJOR=240
E: MINOR=0
`
)

// bench is an endpoint for a machine with one widget.
type bench struct {
	t        *testing.T
	dir      string
	machine  *udevtest.Machine
	endpoint *plugin.Endpoint
	stop     func()
}

func newBench(t *testing.T, changes ...func(*plugin.Endpoint)) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("", "mp") // a short name, because the path of a unix socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, dir: dir, machine: udevtest.New(t, widget)}
	log := slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	host := &device.Host{Tree: sysfs.At(b.machine.Root())}
	inv := inventory.New(inventory.Options{
		Source: b.machine, Host: host, Log: log, Store: statefile.Open(t.TempDir(), log),
		Rules: []device.Rule{{Resource: resource, Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "widget"}}},
	})
	watch := &plugin.Watch{Dir: dir, Log: log}
	b.endpoint = &plugin.Endpoint{
		Resource: plugin.Resource{Name: resource, Permissions: "rw", Variable: "METALPLUG_EXAMPLE_ORG_WIDGET"},
		Dir:      dir, Inventory: inv, Host: host, Watch: watch, Log: log, Parked: &plugin.Parked{}, Metrics: noMetrics(),
		Allocated: func([]*inventory.Status) {}, Changed: func() {}, Start: func(context.Context, []*inventory.Status) error { return nil },
		Counted: func(context.Context) ([]string, error) { return nil, nil },
	}
	for _, change := range changes {
		change(b.endpoint)
	}
	b.run(inv, watch)
	return b
}

func noMetrics() plugin.Metrics {
	return plugin.Metrics{Answered: func(string, string, error) {}, Registered: func(string, error) {}, Sent: func(time.Duration) {}}
}

func (b *bench) run(inv *inventory.Inventory, watch *plugin.Watch) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	part := func(run func() error) {
		running.Go(func() {
			if err := run(); err != nil {
				b.t.Error(err)
			}
		})
	}
	watching, started := make(chan struct{}), make(chan struct{})
	part(func() error { return watch.Run(ctx, func() { close(watching) }) })
	part(func() error { return inv.Run(ctx) })
	<-watching
	<-inv.Ready()
	running.Go(func() { b.endpoint.Run(ctx, func() { close(started) }) })
	<-started
	b.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	b.t.Cleanup(func() {
		b.stop()
		os.RemoveAll(b.dir)
	})
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// startKubelet starts a device manager, which is stopped after the test.
func (b *bench) startKubelet() *kubelet.Kubelet {
	b.t.Helper()
	return startKubelet(b.t, b.dir)
}

func startKubelet(t *testing.T, dir string) *kubelet.Kubelet {
	t.Helper()
	k, err := kubelet.Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	return k
}

// waitAllocatable waits until the device manager knows the given number of healthy devices.
func (b *bench) waitAllocatable(k *kubelet.Kubelet, want int) {
	b.t.Helper()
	limit := time.After(patience)
	for {
		changed := k.Changed()
		if k.Resource(resource).Allocatable == want {
			return
		}
		select {
		case <-changed:
		case <-limit:
			b.t.Fatalf("never %d devices, last %+v", want, k.Resource(resource))
		}
	}
}

// sockets returns our sockets in the directory.
func (b *bench) sockets() []string {
	b.t.Helper()
	found, err := filepath.Glob(filepath.Join(b.dir, "mp-*.sock"))
	if err != nil {
		b.t.Fatal(err)
	}
	return found
}

// client connects to the endpoint like the kubelet.
func (b *bench) client() pluginapi.DevicePluginClient {
	b.t.Helper()
	sockets := b.sockets()
	if len(sockets) != 1 {
		b.t.Fatalf("sockets %v, want one", sockets)
	}
	conn, err := grpc.NewClient("unix:"+sockets[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	return pluginapi.NewDevicePluginClient(conn)
}

// registry is a kubelet that accepts a registration unless open fails.
type registry struct {
	pluginapi.UnimplementedRegistrationServer
	open func(context.Context) error // opens the stream before the answer
}

func (r *registry) Register(ctx context.Context, _ *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	return &pluginapi.Empty{}, r.open(ctx)
}

// TestRegistrationIsRepeated has a kubelet that refuses the first registration, and opens no stream after the second. Then it
// simulates a race in the device manager that disconnects a working stream. Like the kubelet, it opens the stream during the
// call. The endpoint waits only a second for a stream that opens later.
func TestRegistrationIsRepeated(t *testing.T) {
	b := newBench(t)
	var calls atomic.Int32
	client, cuts := b.client(), make(chan context.CancelFunc, 10)
	l, err := net.Listen("unix", filepath.Join(b.dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, &registry{open: func(call context.Context) error {
		switch calls.Add(1) {
		case 1:
			return errors.New("the client connection is closing")
		case 2:
			return nil
		}
		ctx, cut := context.WithCancel(t.Context())
		stream, err := client.ListAndWatch(ctx, &pluginapi.Empty{})
		if err == nil {
			_, err = stream.Recv()
		}
		if err = errors.Join(err, call.Err()); err != nil { // the endpoint calls Register again
			cut()
			return err
		}
		cuts <- cut
		return nil
	}})
	go server.Serve(l)
	t.Cleanup(server.Stop)
	for range 3 {
		var cut context.CancelFunc
		select {
		case cut = <-cuts:
		case <-time.After(patience):
			t.Fatal("not registered")
		}
		if err := b.endpoint.Alive(t.Context()); err != nil { // the endpoint has received the answer
			t.Fatal(err)
		}
		if len(cuts) > 0 {
			t.Fatal("registered again though the stream is open")
		}
		cut()
	}
}

func TestAllocateErrorsNameTheDevice(t *testing.T) {
	b := newBench(t)
	client := b.client()
	if err := os.Remove(filepath.Join(b.machine.Root(), "dev/widget0")); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		ids  []string
		text string
	}{
		{"invented", []string{"nvme-invented"}, `"nvme-invented": not a device of this resource`},
		{"one of two invented", []string{"node-A-widget", "x"}, `"x"`},
		{"empty ID", []string{""}, `""`},
		{"none", nil, "no device"},
		{"4 KiB", []string{strings.Repeat("x", 4096)}, `x": not a device`},
		{"the node is gone", []string{"node-A-widget"}, "/dev/widget0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := client.Allocate(t.Context(), &pluginapi.AllocateRequest{
				ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: test.ids}},
			})
			if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), test.text) {
				t.Errorf("error %v, want FailedPrecondition with %q", err, test.text)
			}
			if err != nil && len(err.Error()) > 500 {
				t.Errorf("the error has %d bytes, and ends up in a pod's status", len(err.Error()))
			}
		})
	}
	if err := b.endpoint.Inventory.Cordon(t.Context(), "node-A-widget", api.Cordon{Reason: "loose"}); err != nil {
		t.Fatal(err)
	}
	_, err := client.Allocate(t.Context(), &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{"node-A-widget"}}}})
	if err == nil || !strings.Contains(err.Error(), "cordoned: loose") {
		t.Errorf("with a cordon: %v", err)
	}
}

func TestOneAnswerForEachContainer(t *testing.T) {
	b := newBench(t)
	request := &pluginapi.ContainerAllocateRequest{DevicesIds: []string{"node-A-widget"}}
	answer, err := b.client().Allocate(t.Context(), &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{request, request}, // the same request twice, without a release in between
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(answer.GetContainerResponses()); n != 2 {
		t.Errorf("%d answers for 2 containers", n)
	}
}

func TestStaleSockets(t *testing.T) {
	first := newBench(t)
	name := filepath.Base(first.sockets()[0])
	hash := name[:strings.LastIndex(name, "-")]
	base, err := os.MkdirTemp("", "mp")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	dir := filepath.Join(base, "a[1]*") // a name that is not used as a pattern
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	stale, foreign, served := filepath.Join(dir, hash+"-0.sock"), filepath.Join(dir, "other.sock"), filepath.Join(dir, hash+"-1.sock")
	for _, path := range []string{stale, foreign, served} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		if l.SetUnlinkOnClose(false); path == served { // by a metalplugd that had started before the directory existed
			defer l.Close()
			continue
		}
		l.Close()
	}
	plugin.RemoveStale(dir, resource)
	for path, kept := range map[string]bool{stale: false, foreign: true, served: true} {
		if _, err := os.Lstat(path); (err == nil) != kept {
			t.Errorf("%s: %v, want kept: %t", path, err, kept)
		}
	}
}

// A stream of another process with uid 0 must not count as the kubelet's.
func TestOnlyTheKubeletsStreamsCount(t *testing.T) {
	b := newBench(t)
	foreign, err := b.client().ListAndWatch(t.Context(), &pluginapi.Empty{})
	if err == nil {
		_, err = foreign.Recv()
	}
	if err != nil || b.endpoint.Status().Connected {
		t.Fatalf("%v, connected with the stream of another", err)
	}
	k := b.startKubelet()
	b.waitAllocatable(k, 1)
	if !b.endpoint.Status().Connected {
		t.Error("not connected with that of the kubelet")
	}
	k.Stop()
	b.waitAllocatable(b.startKubelet(), 1)
}

// A client that connects and sends nothing does not prevent the endpoint from stopping.
func TestStopWithSilentClient(t *testing.T) {
	b := newBench(t)
	conn, err := net.Dial("unix", b.sockets()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ended := make(chan struct{})
	go func() {
		b.stop()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the endpoint has not ended")
	}
}
