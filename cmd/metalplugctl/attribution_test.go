// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
)

// books is a kubelet that reports one pod as the holder of each disk of the node.
type books struct {
	podresources.UnimplementedPodResourcesListerServer
	registered *atomic.Bool // metalplugd has registered the disks
}

func disks() []*podresources.ContainerDevices {
	all := &podresources.ContainerDevices{ResourceName: nvmeName}
	for n := '1'; n <= '7'; n++ {
		all.DeviceIds = append(all.DeviceIds, strings.Replace(lastDisk, "1270", "12"+string(n)+"0", 1))
	}
	return []*podresources.ContainerDevices{all}
}

func (books) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Namespace: "shop", Name: "db-0", Containers: []*podresources.ContainerResources{{Name: "postgres", Devices: disks()}},
	}}}, nil
}

func (b books) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest,
) (*podresources.AllocatableResourcesResponse, error) {
	if !b.registered.Load() { // before that, the count comes from another plugin
		return &podresources.AllocatableResourcesResponse{}, nil
	}
	return &podresources.AllocatableResourcesResponse{Devices: disks()}, nil
}

// TestHoldersOfDevice checks that the kubelet's answer is in the table, the JSON, the explanation, the events and the
// metrics.
func TestHoldersOfDevice(t *testing.T) {
	n := newNode(t, bundledText(t, "gpu-server"), "")
	l, err := net.Listen("unix", n.path("pr.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	registered := &atomic.Bool{}
	podresources.RegisterPodResourcesListerServer(server, books{registered: registered})
	go server.Serve(l)
	t.Cleanup(server.Stop)
	k := n.connect(nvmeName)
	registered.Store(true)
	if _, err := k.Allocate(t.Context(), nvmeName, 1); err != nil {
		t.Fatal(err)
	}
	d := n.waitHolder()
	if want := (api.Pod{Namespace: "shop", Name: "db-0", Container: "postgres"}); *d.Allocated != want || !d.Held || d.Holders != nil {
		t.Errorf("%+v", d)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"list"}, "shop/db-0"},
		{[]string{"why", d.ID}, "held by shop/db-0 (postgres)"},
		{[]string{"status"}, "1 held by pods"},
	} {
		if code, stdout, stderr := n.ctl(test.args...); code != exitOK || !strings.Contains(stdout, test.want) {
			t.Errorf("%v: exit %d: %s%s", test.args, code, stdout, stderr)
		}
	}
	_, stdout, _ := n.ctl("doctor", "-o", "json")
	var found []finding
	if err := json.Unmarshal([]byte(stdout), &found); err != nil {
		t.Fatal(err)
	}
	var differ []string // the kubelet counts the offered disks, but no device of the other two resources
	for _, f := range found {
		if f.Check == "kubelet's count" {
			name, _, _ := strings.Cut(f.Text, ":")
			differ = append(differ, name)
		}
	}
	if want := []string{"nvidia.com/gpu", hcaName}; !slices.Equal(differ, want) {
		t.Errorf("the counts of %q differ, want %q", differ, want)
	}
}

// waitHolder waits until exactly one holder of a device is known.
func (n *node) waitHolder() api.Device {
	n.t.Helper()
	for limit := time.Now().Add(patience); ; {
		var devices, held []api.Device
		if err := (api.Client{Socket: n.socket()}).Get(n.t.Context(), "/v1/devices", &devices); err != nil {
			n.t.Fatal(err)
		}
		for _, d := range devices {
			if d.Allocated != nil {
				held = append(held, d)
			}
		}
		if len(held) == 1 {
			return held[0]
		}
		if time.Now().After(limit) {
			n.t.Fatalf("held are %+v", held)
		}
	}
}

func TestSocketOfTheConfiguration(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "t.toml")
	if err := place(file, "paths.run = \"/run/other\"\n"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ flag, file, want string }{
		{"", file, "/run/other/control.sock"},
		{"/tmp/x.sock", file, "/tmp/x.sock"},
		{"", filepath.Join(dir, "none.toml"), "/run/metalplug/control.sock"},
	} {
		o := clientOptions{socket: test.flag}
		if _, c := o.loadConfig(test.file); c.Socket != test.want {
			t.Errorf("%q, %s: %s, want %s", test.flag, test.file, c.Socket, test.want)
		}
	}
}

// TestNoFileOfTheDaemonIsOpened checks that doctor does not open files of metalplugd. An attacker may have taken over
// metalplugd, and an operator runs doctor as root.
func TestNoFileOfTheDaemonIsOpened(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.toml")
	if err := place(file, "nonsense = 1\n"); err != nil {
		t.Fatal(err)
	}
	socket := serveAnswers(t, map[string]any{
		"/v1/status": api.Status{Configuration: api.Configuration{File: file}}, "/v1/devices": []api.Device{},
	})
	for _, command := range []string{"doctor", "check"} {
		if _, stdout, stderr := ctl(t, "--socket", socket, command); strings.Contains(stdout+stderr, "nonsense") {
			t.Errorf("%s: %s%s", command, stdout, stderr)
		}
	}
	_, stdout, _ := ctl(t, "--socket", socket, "doctor")
	if text := strings.Join(strings.Fields(stdout), " "); !strings.Contains(text, "the daemon reads \""+file+"\", not "+config.DefaultFile) {
		t.Errorf("the file is not named:\n%s", stdout)
	}
}
