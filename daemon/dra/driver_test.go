// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/metalplug/metalplug/daemon/api"
)

// daemon simulates metalplugd with two devices for claims, and one that claims share.
func daemon(t *testing.T, prepare func(uid string, ask api.Claim) (api.Prepared, *api.Refused)) *driver {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, api.Status{Ready: true, Resources: []api.Resource{{Name: "example.org/widget", Serve: "dra"}, {Name: "example.org/shared", Serve: "dra", Shares: 2}}})
	})
	mux.HandleFunc("GET /v1/devices", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, []api.Device{{ID: "S_1", Resource: "example.org/shared", Health: "Healthy"}, {ID: "A_1", Resource: "example.org/widget", Health: "Healthy"}, {ID: "A_2", Resource: "example.org/widget", Health: "Healthy"}})
	})
	mux.HandleFunc("POST /v1/claims/{uid}/prepare", func(w http.ResponseWriter, r *http.Request) {
		var ask api.Claim
		if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
			t.Error(err)
		}
		prepared, refused := prepare(r.PathValue("uid"), ask)
		if refused != nil {
			w.WriteHeader(refused.Code)
			answer(w, refused)
			return
		}
		answer(w, prepared)
	})
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return &driver{Options: Options{Node: "n1"}, client: api.Client{Socket: l.Addr().String()}}
}

func claim(results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{}
	c.UID, c.Namespace, c.Name = "u1", "ns", "c1"
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
	return c
}

func prepared(t *testing.T, d *driver, c *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	t.Helper()
	all, err := d.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{c})
	if err != nil {
		t.Fatal(err)
	}
	return all[c.UID]
}

func TestPrepare(t *testing.T) {
	d := daemon(t, func(uid string, ask api.Claim) (api.Prepared, *api.Refused) {
		if uid != "u1" || ask.Namespace != "ns" || ask.Name != "c1" || len(ask.Requests) != 1 || strings.Join(ask.Requests[0].Devices, " ") != "A_1 A_2" {
			t.Errorf("metalplugd is asked for %s: %+v", uid, ask)
		}
		return api.Prepared{Requests: []api.PreparedRequest{{Name: "r", CDI: []string{"k=v"}}}}, nil
	})
	result := prepared(t, d, claim(
		resourceapi.DeviceRequestAllocationResult{Driver: "other", Request: "x", Pool: "p", Device: "d"},
		resourceapi.DeviceRequestAllocationResult{Driver: DriverName, Request: "r", Pool: "n1", Device: "a-1"},
		resourceapi.DeviceRequestAllocationResult{Driver: DriverName, Request: "r", Pool: "n1", Device: "a-2"}))
	if result.Err != nil || len(result.Devices) != 2 || len(result.Devices[0].CDIDeviceIDs) != 1 || len(result.Devices[1].CDIDeviceIDs) != 0 {
		t.Errorf("the kubelet gets %+v", result)
	}
}

// Two requests of a claim, or one that asks for several, may get shares of the same device.
func TestPrepareShares(t *testing.T) {
	d := daemon(t, func(_ string, ask api.Claim) (p api.Prepared, _ *api.Refused) {
		for _, r := range ask.Requests {
			if len(r.Devices) != 1 {
				t.Errorf("metalplugd is asked for %+v", r)
			}
			p.Requests = append(p.Requests, api.PreparedRequest{Name: r.Name, CDI: []string{"k=" + r.Name}})
		}
		return p, nil
	})
	var results []resourceapi.DeviceRequestAllocationResult
	for i, request := range []string{"r", "r", "q"} {
		id := types.UID(fmt.Sprint(i))
		results = append(results, resourceapi.DeviceRequestAllocationResult{Driver: DriverName, Request: request, Pool: "n1", Device: "a-1", ShareID: &id})
	}
	result := prepared(t, d, claim(results...))
	if result.Err != nil || len(result.Devices) != 3 {
		t.Fatalf("the kubelet gets %+v", result)
	}
	for i, got := range result.Devices {
		if *got.ShareID != types.UID(fmt.Sprint(i)) {
			t.Errorf("share %d has the ID %s", i, *got.ShareID)
		}
	}
}

// metalplug-dra publishes no shared devices to an API server that drops their fields, and shows the operator why. If the API
// server answers with an error, metalplug-dra asks again.
func TestSharing(t *testing.T) {
	kube := fake.NewClientset()
	var notes []string
	drops, failing := true, errors.New("no answer")
	kube.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create := a.(clienttesting.CreateActionImpl)
		if len(create.CreateOptions.DryRun) != 1 {
			t.Errorf("it is stored: %+v", create)
		}
		slice := create.GetObject().(*resourceapi.ResourceSlice)
		if drops {
			slice.Spec.Devices[0].AllowMultipleAllocations = nil
		}
		return true, slice, failing
	})
	d := &driver{Options: Options{Node: "n1", Kube: kube, Log: slog.New(slog.DiscardHandler), Note: func(problem string) { notes = append(notes, problem) }}}
	var s sharing
	for _, step := range []struct {
		shared, drops, possible bool
		failing                 error
	}{
		{failing: failing},
		{shared: true, failing: failing},
		{shared: true, failing: failing},
		{shared: true, drops: true},
		{shared: true}, // not asked again
		{drops: true},
		{shared: true, possible: true},
	} {
		drops, failing = step.drops, step.failing
		if again := s.check(t.Context(), d, step.shared); again != (step.shared && failing != nil) || s.possible != step.possible {
			t.Errorf("%+v: it is %+v, again %v", step, s, again)
		}
	}
	if want := []string{"no answer", api.NoSharing, ""}; !slices.Equal(notes, want) {
		t.Errorf("the operator was told %q", notes)
	}
}

// If the API server refuses the dry run, metalplug-dra still publishes the devices without shares.
func TestDryRunRefused(t *testing.T) {
	d := daemon(t, nil)
	kube := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	stored := make(chan *resourceapi.ResourceSlice, 1)
	kube.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create := a.(clienttesting.CreateActionImpl)
		if len(create.CreateOptions.DryRun) > 0 {
			return true, nil, errors.New("a webhook does not support dry run")
		}
		slice := create.GetObject().(*resourceapi.ResourceSlice)
		stored <- slice
		return true, slice, nil
	})
	d.Kube, d.Log, d.Note, d.changed = kube, slog.New(slog.DiscardHandler), func(string) {}, make(chan struct{})
	dirty := make(chan struct{}, 1)
	dirty <- struct{}{}
	ended := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		d.publish(ctx, dirty, nil)
	}()
	defer func() { stop(); <-ended }()
	if slice := <-stored; len(slice.Spec.Devices) != 2 {
		t.Errorf("the slice contains %+v", slice.Spec.Devices)
	}
}

// A request with admin access is marked, and the other requests of its claim are not.
func TestAdminAccess(t *testing.T) {
	d := daemon(t, func(_ string, ask api.Claim) (p api.Prepared, _ *api.Refused) {
		for _, r := range ask.Requests {
			if r.Admin != (r.Name == "all") {
				t.Errorf("metalplugd is asked for %+v", r)
			}
			p.Requests = append(p.Requests, api.PreparedRequest{Name: r.Name, CDI: []string{"k=" + r.Name}})
		}
		return p, nil
	})
	yes := true
	one := resourceapi.DeviceRequestAllocationResult{Driver: DriverName, Request: "one", Pool: "n1", Device: "a-1"}
	all := one
	all.Request, all.AdminAccess = "all", &yes
	result := prepared(t, d, claim(one, all))
	if result.Err != nil || len(result.Devices) != 2 || result.Devices[1].CDIDeviceIDs[0] != "k=all" {
		t.Errorf("the kubelet gets %+v", result)
	}
}

// The kubelet reports each refusal in an event of the pod.
func TestRefused(t *testing.T) {
	d := daemon(t, func(string, api.Claim) (api.Prepared, *api.Refused) {
		return api.Prepared{}, &api.Refused{Code: 503, Text: "its devices are being erased for 40s"}
	})
	result := resourceapi.DeviceRequestAllocationResult{Driver: DriverName, Request: "r", Pool: "n1", Device: "a-1"}
	unknown, elsewhere := result, result
	unknown.Device, elsewhere.Pool = "a-3", "n2"
	configured := claim(result)
	configured.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: DriverName}},
	}}
	for text, c := range map[string]*resourceapi.ResourceClaim{
		"being erased": claim(result), "has no device a-3": claim(unknown), "pool n2": claim(elsewhere), "opaque": configured,
	} {
		if got := prepared(t, d, c).Err; got == nil || !strings.Contains(got.Error(), text) {
			t.Errorf("the error is %v, not %q", got, text)
		}
	}
}

// If a pod ends while metalplugd is down, the kubelet gets an error and repeats the call. An error of the whole call to prepare
// claims makes metalplug-dra repeat it.
func TestNoDaemon(t *testing.T) {
	d := &driver{client: api.Client{Socket: filepath.Join(t.TempDir(), "s")}}
	all, err := d.UnprepareResourceClaims(context.Background(), []kubeletplugin.NamespacedObject{{UID: types.UID("u1")}})
	if err != nil || all["u1"] == nil {
		t.Errorf("the kubelet gets %v, %v", all, err)
	}
	if _, err := d.PrepareResourceClaims(context.Background(), nil); err == nil {
		t.Error("a claim is prepared without metalplugd")
	}
	d.state = &state{devices: map[string]api.Device{"a-1": {ID: "A_1"}}}
	c := claim(resourceapi.DeviceRequestAllocationResult{Driver: DriverName, Request: "r", Device: "a-1"})
	if all, err := d.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{c}); !errors.Is(err, api.ErrNoAnswer) {
		t.Errorf("while metalplugd is down, the kubelet gets %v, %v", all, err)
	}
}
