// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
)

// checkpoint is as kubelet v1.36 writes it, with pods of two resources, one by NUMA node and one with shares.
const checkpoint = `{"Data":{"PodDeviceEntries":[
{"PodUID":"u1","ContainerName":"c","ResourceName":"example.org/a","DeviceIDs":{"-1":["a1"],"1":["a2"]},"AllocResp":"AA=="},
{"PodUID":"u2","ContainerName":"c","ResourceName":"example.org/s","DeviceIDs":{"0":["s1::0","s1::1"]},"AllocResp":"AA=="}],
"RegisteredDevices":{"example.org/a":["a1","a2","a3"]}},"Checksum":1}`

// books is a kubelet that knows which devices its pods hold.
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

func TestHolders(t *testing.T) {
	dir, err := os.MkdirTemp("", "mp")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	b := &books{held: []string{"held", "shared::1"}}
	l, err := net.Listen("unix", filepath.Join(dir, "pr.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, b)
	go server.Serve(l)
	defer server.Stop()
	if err := os.WriteFile(filepath.Join(dir, "kubelet_internal_checkpoint"), []byte(checkpoint), 0o600); err != nil {
		t.Fatal(err)
	}
	h := plugin.Holders{Socket: filepath.Join(dir, "pr.sock"), Dir: dir}
	devices := []string{"held", "shared", "a2", "s1", "free"}
	known := map[string]inventory.Holding{
		"held": inventory.Held, "shared": inventory.Held, "a2": inventory.Remembered, "s1": inventory.Remembered,
	}
	first, err := h.Ask(t.Context(), devices)
	if err != nil || !maps.Equal(first, known) {
		t.Errorf("at first %v, %v, want %v", first, err, known)
	}
	known["free"] = inventory.Free // only after the second time
	second, err := h.Ask(t.Context(), devices)
	if err != nil || !maps.Equal(second, known) {
		t.Errorf("then %v, %v, want %v", second, err, known)
	}
	server.Stop()
	if _, err := h.Ask(t.Context(), devices); err == nil {
		t.Error("no error without a kubelet")
	}
}

func TestRemembered(t *testing.T) {
	dir := t.TempDir()
	if devices, err := plugin.Remembered(dir); len(devices) != 0 || err != nil {
		t.Errorf("without a checkpoint: %v, %v", devices, err)
	}
	file := filepath.Join(dir, "kubelet_internal_checkpoint")
	if err := os.WriteFile(file, []byte(checkpoint), 0o600); err != nil {
		t.Fatal(err)
	}
	devices, err := plugin.Remembered(dir)
	if err != nil || len(devices["example.org/a"]) != 2 || len(devices["example.org/s"]) != 1 {
		t.Errorf("%v, %v", devices, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := plugin.Remembered(dir); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("error %v, want one that names the file", err)
	}
}
