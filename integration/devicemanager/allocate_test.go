// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

func TestAllocate(t *testing.T) {
	k, _ := offered(t, Options{}, append(plain(3), widget{n: 0, kind: "sprocket", numa: -1}))
	sees(t, k, "example.org/sprocket", 1, 1)
	p := pod("p1", widgetResource, 2)
	p.Containers[0].Limits["example.org/sprocket"] = 1
	admit(t, k, p)
	ids := map[string][]string{}
	for _, d := range assigned(t, k, "p1") {
		ids[d.Resource] = append(ids[d.Resource], d.ID)
	}
	got := run(t, k, "p1", "main")
	for name, variable := range map[string]string{
		widgetResource: "METALPLUG_EXAMPLE_ORG_WIDGET", "example.org/sprocket": "METALPLUG_EXAMPLE_ORG_SPROCKET",
	} {
		if want := strings.Join(ids[name], ","); got.Env[variable] != want {
			t.Errorf("%s=%q instead of %q", variable, got.Env[variable], want)
		}
	}
	checkNodes(t, got, 3)
}

// checkNodes checks that a container got n nodes, each at its own path.
func checkNodes(t *testing.T, got *protocol.RunOptions, n int) {
	t.Helper()
	if len(got.Nodes) != n {
		t.Errorf("nodes: %+v instead of %d", got.Nodes, n)
	}
	seen := map[string]bool{}
	for _, node := range got.Nodes {
		if !strings.HasPrefix(node.Host, "/dev/") || !strings.HasPrefix(node.Container, "/dev/") || node.Permissions != "rw" {
			t.Errorf("node %+v", node)
		}
		if seen[node.Container] {
			t.Errorf("two nodes at %s", node.Container)
		}
		seen[node.Container] = true
	}
	t.Logf("nodes: %+v", got.Nodes)
}

// The pod gets two of four devices. The first and the third share a NUMA node. A random choice would find that pair in
// a third of all cases.
func TestPreferredAllocation(t *testing.T) {
	k, _ := offered(t, Options{NUMANodes: 2}, aligned(4))
	for i := range 20 {
		uid := fmt.Sprintf("p%d", i)
		admit(t, k, pod(uid, widgetResource, 2))
		got := assigned(t, k, uid)
		if len(got) != 2 || got[0].NUMA[0] != got[1].NUMA[0] {
			t.Fatalf("round %d: %+v", i, got)
		}
		remove(t, k, uid)
	}
}

// After its init container, a container of an initialised pod gets the same device, without a call of the plugin in
// between.
func TestInitReuse(t *testing.T) {
	k, _ := offered(t, Options{}, plain(1))
	p := pod("p1", widgetResource, 1)
	p.Init = []protocol.Container{{Name: "init", Limits: map[string]int64{widgetResource: 1}}}
	admit(t, k, p)
	run(t, k, "p1", "init")
	k.SetState("p1", "init", protocol.Exited)
	run(t, k, "p1", "main")
}

func TestPreStart(t *testing.T) {
	k, d := offered(t, Options{}, plain(2))
	admit(t, k, pod("p1", widgetResource, 1))
	run(t, k, "p1", "main")
	run(t, k, "p1", "main") // the container starts again after a crash

	d.plug(nil)
	sees(t, k, widgetResource, 2, 0)
	_, err := k.Run(within(t), "p1", "main")
	if err == nil || !strings.Contains(err.Error(), "PreStartContainer") {
		t.Errorf("start with an unplugged device: %v", err)
	}
	t.Logf("refusal: %v", err)

	d.plug(plain(2))
	sees(t, k, widgetResource, 2, 2)
	run(t, k, "p1", "main")
}

func TestAsksForTooMuch(t *testing.T) {
	k, _ := offered(t, Options{}, plain(1))
	rejected(t, k, pod("p1", widgetResource, 2), "UnexpectedAdmissionError")
	admit(t, k, pod("p2", widgetResource, 1)) // no device was lost
}

// IDs that the kubelet should never request get an error, not a crash.
func TestUnknownID(t *testing.T) {
	k, d := offered(t, Options{}, plain(1))
	own, _ := d.sockets()
	conn, err := grpc.NewClient("unix://"+own[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	d.must(err)
	defer conn.Close()
	other, err := grpc.NewClient("unix://"+own[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	d.must(err)
	defer other.Close()
	for _, ids := range [][]string{{"no-such-widget"}, {""}, {"../../etc/passwd"}, {strings.Repeat("x", 4000)}, {}} {
		for _, c := range []api.DevicePluginClient{api.NewDevicePluginClient(conn), api.NewDevicePluginClient(other)} {
			checkRefusals(t, c, ids)
		}
	}
	sees(t, k, widgetResource, 1, 1)
	admit(t, k, pod("p1", widgetResource, 1))
}

// checkRefusals checks that a plugin refuses IDs with a text that fits into a pod's status, and that preferences never
// fail.
func checkRefusals(t *testing.T, c api.DevicePluginClient, ids []string) {
	t.Helper()
	ctx := within(t)
	_, allocate := c.Allocate(ctx, allocateRequest(ids))
	_, start := c.PreStartContainer(ctx, preStartRequest(ids))
	for _, err := range []error{allocate, start} {
		if err == nil {
			t.Errorf("%.20q was not refused", ids)
		}
		if code := status.Code(err); slices.Contains([]codes.Code{codes.Unknown, codes.Unavailable}, code) || len(err.Error()) > 500 {
			t.Errorf("%.20q: %.600v", ids, err)
		}
	}
	for _, size := range []int32{-1, 0, 1, 1 << 30} {
		_, err := c.GetPreferredAllocation(ctx, &api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: ids, MustIncludeDeviceIDs: ids, AllocationSize: size},
		}})
		if err != nil {
			t.Errorf("preference among %.20q: %.600v", ids, err)
		}
	}
}
