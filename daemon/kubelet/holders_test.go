// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/kubelet"
)

// written is a checkpoint in the format of kubelet v1.36, with pods of two resources, one by NUMA node and one with shares.
const written = `{"Data":{"PodDeviceEntries":[
{"PodUID":"u1","ContainerName":"c","ResourceName":"example.org/a","DeviceIDs":{"-1":["a1"],"1":["a2"]},"AllocResp":"AA=="},
{"PodUID":"u2","ContainerName":"c","ResourceName":"example.org/s","DeviceIDs":{"0":["s1::0","s1::1"]},"AllocResp":"AA=="}],
"RegisteredDevices":{"example.org/a":["a1","a2","a3"]}},"Checksum":1}`

// books is a kubelet that reports which devices its pods hold.
type books struct {
	podresources.UnimplementedPodResourcesListerServer
	mu   sync.Mutex
	held []string
}

func (b *books) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	container := &podresources.ContainerResources{Devices: []*podresources.ContainerDevices{{DeviceIds: b.held}}}
	return &podresources.ListPodResourcesResponse{
		PodResources: []*podresources.PodResources{{Containers: []*podresources.ContainerResources{container}}},
	}, nil
}

// serve serves b in a new directory, which also has a checkpoint.
func (b *books) serve(t *testing.T) (*grpc.Server, *kubelet.Holders) {
	t.Helper()
	return serveBooks(t, b)
}

func serveBooks(t *testing.T, b podresources.PodResourcesListerServer) (*grpc.Server, *kubelet.Holders) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "pr.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, b)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	if err := os.WriteFile(filepath.Join(dir, "kubelet_internal_checkpoint"), []byte(written), 0o600); err != nil {
		t.Fatal(err)
	}
	return server, &kubelet.Holders{Socket: filepath.Join(dir, "pr.sock"), Dir: dir}
}

// giving is a kubelet that allocates a device right after its list of holders.
type giving struct {
	books
	file string // the checkpoint
}

func (g *giving) List(ctx context.Context, r *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	answer, err := g.books.List(ctx, r)
	if err == nil {
		err = os.WriteFile(g.file, []byte(strings.Replace(written, `"a2"`, `"a2","given"`, 1)), 0o600)
	}
	return answer, err
}

// The answer that only the checkpoint names a device is valid for minutes. It must not be given for a device that is
// allocated in between.
func TestDeviceGivenWhileTheKubeletIsAsked(t *testing.T) {
	g := &giving{}
	_, h := serveBooks(t, g)
	g.file = filepath.Join(h.Dir, "kubelet_internal_checkpoint")
	if holdings, err := h.Ask(t.Context(), []string{"given"}); err != nil || len(holdings.Holdings) > 0 {
		t.Errorf("holdings %v, %v, want none", holdings, err)
	}
	g.held = []string{"given"}
	if holdings, err := h.Ask(t.Context(), []string{"given"}); err != nil || holdings.Holdings["given"] != kubelet.Held {
		t.Errorf("then %v, %v, want that it is held", holdings, err)
	}
}

func TestHolders(t *testing.T) {
	server, h := (&books{held: []string{"held", "shared::1"}}).serve(t)
	devices := []string{"held", "shared", "a2", "s1", "free"}
	known := map[string]kubelet.Holding{
		"held": kubelet.Held, "shared": kubelet.Held, "a2": kubelet.Noted, "s1": kubelet.Noted,
	}
	first, err := h.Ask(t.Context(), devices)
	if err != nil || !maps.Equal(first.Holdings, known) {
		t.Errorf("at first %v, %v, want %v", first, err, known)
	}
	known["free"] = kubelet.Free // the kubelet reports this only after the second query
	delete(known, "a2")          // returned only once
	delete(known, "s1")
	second, err := h.Ask(t.Context(), devices)
	if err != nil || !maps.Equal(second.Holdings, known) {
		t.Errorf("then %v, %v, want %v", second, err, known)
	}
	server.Stop()
	if _, err := h.Ask(t.Context(), devices); err == nil {
		t.Error("no error without a kubelet")
	}
}

// TestBookedMatchesCheckpoint checks that the devices in the checkpoint include one that was just allocated, even
// if the caller has not asked for it. If its pod ends immediately, no later checkpoint names the device, so it would count
// as held indefinitely.
func TestBookedMatchesCheckpoint(t *testing.T) {
	_, h := (&books{}).serve(t)
	got, err := h.Ask(t.Context(), []string{"free"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a1", "a2", "s1"}
	if booked := slices.Sorted(maps.Keys(got.Booked)); !slices.Equal(booked, want) {
		t.Errorf("booked %v, want %v", got.Booked, want)
	}
}

// An ordinary init container is in the checkpoint and never in the list. Sending a list makes the kubelet write the
// checkpoint again, but this must not be repeated endlessly.
func TestDeviceOfAnInitContainerIsHeld(t *testing.T) {
	_, h := (&books{}).serve(t)
	file := filepath.Join(h.Dir, "kubelet_internal_checkpoint")
	write := func(text string, minute int) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(1_000_000, 0).Add(time.Duration(minute) * time.Minute)
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(when string, want kubelet.Holding, soon bool) {
		t.Helper()
		holdings, err := h.Ask(t.Context(), []string{"a2"})
		if err != nil || holdings.Holdings["a2"] != want || h.Soon != soon {
			t.Errorf("%s: %v, soon %v, %v, want %v, %v", when, holdings, h.Soon, err, want, soon)
		}
	}
	write(written, 0)
	ask("at first", kubelet.Noted, true)
	ask("not yet written", kubelet.Unknown, false)
	write(written, 1)
	ask("written, and named still", kubelet.Named, false)
	ask("not written since", kubelet.Named, false)
	pause := 20 * time.Second // the pod may be gone, and the kubelet had no reason to write
	for minute := range 8 {
		h.Age(pause / 2)
		ask("before a pause is over", kubelet.Named, false)
		h.Age(pause / 2)
		ask("after it", kubelet.Noted, true)
		write(written, 2+minute)
		ask("written again", kubelet.Named, false)
		pause = min(2*pause, 10*time.Minute)
	}
	write(`{"Data":{"PodDeviceEntries":null},"Checksum":1}`, 10)
	ask("not named any more", kubelet.Unknown, true)
	ask("nor the second time", kubelet.Free, false)
	write(written, 11)
	ask("another pod", kubelet.Noted, true)
	write(written, 12)
	ask("which has it", kubelet.Named, false)
	h.Age(20 * time.Second)
	ask("and may have ended just then", kubelet.Noted, true)
}

func TestRemembered(t *testing.T) {
	dir := t.TempDir()
	if devices, err := kubelet.CheckpointDevices(dir); len(devices) != 0 || err != nil {
		t.Errorf("without a checkpoint: %v, %v", devices, err)
	}
	file := filepath.Join(dir, "kubelet_internal_checkpoint")
	if err := os.WriteFile(file, []byte(written), 0o600); err != nil {
		t.Fatal(err)
	}
	devices, err := kubelet.CheckpointDevices(dir)
	want := map[string]kubelet.Known{
		"a1": {NUMANode: -1, As: []string{"a1"}, Pods: []string{"u1"}}, "a2": {NUMANode: 1, As: []string{"a2"}, Pods: []string{"u1"}},
	}
	if err != nil || !reflect.DeepEqual(devices["example.org/a"], want) || len(devices["example.org/s"]) != 1 {
		t.Errorf("%v, %v", devices, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := kubelet.CheckpointDevices(dir); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("error %v, want one that names the file", err)
	}
}

// TestOtherPartsOfTheCheckpoint reads a checkpoint in which another part has the name of the entries.
func TestOtherPartsOfTheCheckpoint(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet_internal_checkpoint")
	const text = `{"Data":{"Other":[{"PodDeviceEntries":1}],"PodDeviceEntries":[{"PodUID":"u1","ResourceName":"example.org/a",` +
		`"DeviceIDs":{"-1":["a1"]},"AllocResp":""}],"RegisteredDevices":{"a":["a1"]}}}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if owners, err := kubelet.Owners(filepath.Dir(file)); err != nil || !reflect.DeepEqual(owners, map[string][]string{"a1": {"u1"}}) {
		t.Errorf("%v, %v", owners, err)
	}
}

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

func TestAllocatable(t *testing.T) {
	_, h := serveBooks(t, &pods{})
	got, err := kubelet.Allocatable(t.Context(), h.Socket)
	if want := map[string][]string{"t/a": {"a", "b"}, "t/b": {"x"}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

func TestReadable(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("plain"), "plain"},
		{status.Error(codes.Unknown, "resource name x is invalid"), "resource name x is invalid"},
		{status.Error(codes.DeadlineExceeded, "context deadline exceeded"), "no answer after 5s; check that the kubelet listens there and works"},
		{
			status.Error(codes.Unavailable, `connection error: desc = "error writing server preface: write unix: broken pipe"`),
			"disconnected, or uses another protocol; to check that the kubelet listens there: ss -xlp",
		},
		{
			status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial unix /a/b: connect: connection refused"`),
			"connect: connection refused",
		},
		{status.Error(codes.Unavailable, `connection error: desc = broken`), "disconnected, or uses another protocol; to check that the kubelet listens there: ss -xlp"},
	} {
		got := kubelet.CleanError(c.err, 5*time.Second)
		if got.Error() != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestMissingSocketError checks gRPC's error for a missing socket.
func TestMissingSocketError(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	want := "query " + socket + ": connect: no such file or directory"
	if _, err := kubelet.Allocatable(t.Context(), socket); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if _, err := (&kubelet.Holders{Socket: socket, Dir: t.TempDir()}).Ask(t.Context(), nil); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
