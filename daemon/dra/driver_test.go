// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/metalplug/metalplug/daemon/api"
)

// daemon simulates metalplugd with three devices for claims, of which one is Unhealthy, and a device that claims share. If broken
// is true, metalplugd fails once.
func daemon(t *testing.T, prepare func(uid string, ask api.Claim) (api.Prepared, *api.Refused), broken ...*atomic.Bool) *driver {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		if len(broken) > 0 && broken[0].CompareAndSwap(true, false) {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		answer(w, api.Status{Ready: true, Resources: []api.Resource{{Name: "example.org/widget", Serve: "dra"}, {Name: "example.org/shared", Serve: "dra", Shares: 2}}})
	})
	mux.HandleFunc("GET /v1/devices", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, []api.Device{
			{ID: "S_1", Resource: "example.org/shared", Health: "Healthy"},
			{ID: "A_1", Resource: "example.org/widget", Health: "Healthy"},
			{ID: "A_2", Resource: "example.org/widget", Health: "Healthy"},
			{ID: "A_3", Resource: "example.org/widget", Health: "Unhealthy"},
		})
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
	return newDriver(serve(t, mux))
}

// serve answers requests until the test ends, and returns the socket.
func serve(t *testing.T, mux *http.ServeMux) string {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return l.Addr().String()
}

// newDriver returns a driver for the simulated metalplugd with the given socket.
func newDriver(socket string) *driver {
	o := Options{Node: "n1", Log: slog.New(slog.DiscardHandler), Used: make(chan struct{}, 1)}
	d := &driver{Options: o, client: api.Client{Socket: socket}}
	d.state.Store(&state{replaced: make(chan struct{})})
	return d
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

// echo prepares each request with a CDI device that has the content of the request as its name.
func echo(uid string, ask api.Claim) (p api.Prepared, _ *api.Refused) {
	for _, r := range ask.Requests {
		p.Requests = append(p.Requests, api.PreparedRequest{Name: r.Name, CDI: []string{fmt.Sprintf("%s=%s/%s %+v", uid, ask.Namespace, ask.Name, r)}})
	}
	return p, nil
}

// Two requests of a claim, or one that asks for several, may get shares of the same device. A request with admin access is marked.
func TestPrepare(t *testing.T) {
	results := []resourceapi.DeviceRequestAllocationResult{{Driver: "other", Request: "x", Pool: "p", Device: "d"}}
	for i, request := range []string{"r", "r", "q", "all", "r"} {
		id, admin := types.UID(fmt.Sprint(i)), request == "all"
		results = append(results, resourceapi.DeviceRequestAllocationResult{
			Driver: DriverName, Request: request, Pool: "n1", Device: fmt.Sprint("a-", 1+i/4), ShareID: &id, AdminAccess: &admin,
		})
	}
	asked := claim(results...)
	asked.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{ // for the device of the other driver
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "other"}},
	}}
	result := prepared(t, daemon(t, echo), asked)
	want := []string{"[u1=ns/c1 {Name:r Devices:[A_1 A_2] Admin:false}]", "[]", "[u1=ns/c1 {Name:q Devices:[A_1] Admin:false}]", "[u1=ns/c1 {Name:all Devices:[A_1] Admin:true}]", "[]"}
	if result.Err != nil || len(result.Devices) != len(want) {
		t.Fatalf("the kubelet gets %+v", result)
	}
	for i, d := range result.Devices {
		if *d.ShareID != types.UID(fmt.Sprint(i)) || fmt.Sprint(d.CDIDeviceIDs) != want[i] {
			t.Errorf("share %d has the ID %s and the devices %v", i, *d.ShareID, d.CDIDeviceIDs)
		}
	}
}

// cluster simulates an API server with the Node n1. It calls create before it stores a new slice.
func cluster(create func(slice *resourceapi.ResourceSlice, dryRun bool) error) *fake.Clientset {
	kube := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "old"}})
	kube.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		action := a.(clienttesting.CreateActionImpl)
		slice, dryRun := action.GetObject().(*resourceapi.ResourceSlice), len(action.CreateOptions.DryRun) > 0
		slice.Name = slice.GenerateName + "x"
		err := create(slice, dryRun)
		return dryRun || err != nil, slice, err
	})
	return kube
}

// An API server may drop the fields for sharing or the taints, or refuse the dry run. metalplug-dra then does not publish the devices
// that need these fields, and shows the operator why shared devices are missing.
func TestFeatures(t *testing.T) {
	for name, c := range map[string]struct {
		drop    func(*resourceapi.Device)
		refusal error
		names   []string
		problem string
	}{
		"all":       {func(*resourceapi.Device) {}, nil, []string{"a-1", "a-2", "a-3", "s-1"}, ""},
		"no shares": {func(d *resourceapi.Device) { d.AllowMultipleAllocations = nil }, nil, []string{"a-1", "a-2", "a-3"}, api.NoSharing},
		"no taints": {func(d *resourceapi.Device) { d.Taints = nil }, nil, []string{"a-1", "a-2", "s-1"}, ""},
		"no answer": {func(*resourceapi.Device) {}, errors.New("no dry run"), []string{"a-1", "a-2"}, "no dry run"},
	} {
		t.Run(name, func(t *testing.T) {
			d, notes := daemon(t, nil), make(chan string, 100)
			kube := cluster(func(slice *resourceapi.ResourceSlice, dryRun bool) error {
				for i := range slice.Spec.Devices {
					c.drop(&slice.Spec.Devices[i])
				}
				return map[bool]error{true: c.refusal}[dryRun]
			})
			w, err := kube.ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			d.Kube, d.Note = kube, func(problem string) { notes <- problem }
			publishing(t, d)
			var names []string
			for _, device := range (<-w.ResultChan()).Object.(*resourceapi.ResourceSlice).Spec.Devices {
				names = append(names, device.Name)
			}
			if !slices.Equal(names, c.names) {
				t.Errorf("the first slice contains %v, want %v", names, c.names)
			}
			for <-notes != c.problem {
			}
		})
	}
}

// If metalplugd or the API server fails once, the devices with shares stay in the slices.
func TestSharesStay(t *testing.T) {
	var broken atomic.Bool
	var asked atomic.Int64
	d := daemon(t, nil, &broken)
	d.Note = func(string) {}
	d.Kube = cluster(func(_ *resourceapi.ResourceSlice, dryRun bool) error {
		if dryRun && asked.Add(1) > 1 {
			return errors.New("the API server does not answer")
		}
		return nil
	})
	last := d.state.Load()
	dirty, registered := publishing(t, d)
	for i, fail := range []func(){func() {}, func() { broken.Store(true); dirty <- struct{}{} }, func() { registered <- struct{}{} }} {
		fail()
		<-last.replaced
		if last = d.state.Load(); last.claimed["s-1"] != 2 || broken.Load() || asked.Load() <= int64(i/2) {
			t.Errorf("after failure %d and %d dry runs, the devices for claims are %v", i, asked.Load(), last.claimed)
		}
	}
}

// publishing publishes the devices of metalplugd until the test ends. The results are the channels of the method publish.
func publishing(t *testing.T, d *driver) (dirty, registered chan<- struct{}) {
	events, kubelets := make(chan struct{}, 1), make(chan struct{}, 1)
	events <- struct{}{}
	ended := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		d.publish(ctx, events, kubelets)
	}()
	t.Cleanup(func() { stop(); <-ended })
	return events, kubelets
}

// If the API server refuses to list the slices, or the Node was deleted, metalplug-dra reports the problem. When the Node was
// created again, the slices get the UID of the new Node. Otherwise, the garbage collector would delete them again and again.
func TestNodeReplaced(t *testing.T) {
	d := daemon(t, nil)
	created, notes := make(chan *resourceapi.ResourceSlice), make(chan string, 100)
	kube := cluster(func(slice *resourceapi.ResourceSlice, dryRun bool) error {
		if !dryRun {
			select {
			case created <- slice.DeepCopy():
			case <-t.Context().Done():
			}
		}
		return nil
	})
	var listed atomic.Bool
	kube.PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return !listed.Load(), nil, errors.New("no list")
	})
	d.Kube, d.Note = kube, func(problem string) { notes <- problem }
	publishing(t, d)
	for !strings.HasSuffix(<-notes, "no list") {
	}
	listed.Store(true)
	first := <-created
	if err := kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("nodes"), "", "n1"); err != nil {
		t.Fatal(err)
	}
	slices := resourceapi.SchemeGroupVersion.WithResource("resourceslices")
	collect := func() { // acts as the garbage collector, which may be faster than the API server's answer to the driver
		for kube.Tracker().Delete(slices, "", first.Name) != nil {
			goruntime.Gosched()
		}
	}
	collect()
	for problem := ""; !strings.Contains(problem, `nodes "n1" not found`); {
		select {
		case problem = <-notes:
		case <-created:
			collect()
		}
	}
	if err := kube.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "new"}}); err != nil {
		t.Fatal(err)
	}
	if uid := (<-created).OwnerReferences[0].UID; uid != "new" {
		t.Errorf("the slices belong to the Node %q", uid)
	}
	for <-notes != "" {
	}
}

// If the watch is slow, metalplug-dra does not write a slice twice.
func TestSlowWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var creates atomic.Int64
		kube := cluster(func(slice *resourceapi.ResourceSlice, _ bool) error {
			slice.ResourceVersion = fmt.Sprint(creates.Add(1))
			return nil
		})
		kube.PrependWatchReactor("resourceslices", func(clienttesting.Action) (bool, watch.Interface, error) { return true, watch.NewFake(), nil })
		d := newDriver("")
		d.Kube = kube
		pool := layout{}.place(nil).pool(state{})
		c, err := d.control(t.Context(), &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"n1": pool}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Stop()
		<-time.After(500 * time.Millisecond)
		if n := creates.Load(); n != 1 {
			t.Errorf("the slice was created %d times", n)
		}
	})
}

// If one of 10,000 devices changes, disappears or appears, metalplug-dra writes one slice. The test ends before watchLag, because
// the controller would then sync again and again while the clock of the bubble stands still.
func TestOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resources, devices := []api.Resource{{Name: "a", Serve: "dra"}}, make([]api.Device, 10_000)
		for i := range devices {
			devices[i] = api.Device{ID: fmt.Sprintf("d%05d", i), Resource: "a", Health: "Healthy"}
		}
		var pools layout
		pool := func() *resourceslice.DriverResources {
			s := newState(resources, devices)
			pools = pools.place(s.claimed)
			return &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"n1": pools.pool(s)}}
		}
		d := newDriver("")
		kube, version := cluster(func(*resourceapi.ResourceSlice, bool) error { return nil }), 0
		kube.PrependReactor("*", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if write, ok := a.(interface{ GetObject() runtime.Object }); ok {
				version++
				write.GetObject().(*resourceapi.ResourceSlice).ResourceVersion = fmt.Sprint(version)
			}
			return false, nil, nil
		})
		d.Kube = kube
		c, err := d.control(t.Context(), pool())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Stop()
		<-time.After(watchLag / 8)
		want := resourceslice.Stats{NumCreates: 157}
		for _, change := range []func(){
			func() {}, func() { devices[5000].Cordoned = true }, func() { devices = devices[1:] }, func() { devices = append(devices, api.Device{ID: "new", Resource: "a"}) },
		} {
			change()
			c.Update(pool())
			<-time.After(watchLag / 8)
			if got := c.GetStats(); got != want {
				t.Errorf("the controller has written %+v, want %+v", got, want)
			}
			want.NumUpdates++
		}
	})
}

// If the library's list of slices hangs, the operator sees the reason.
func TestListHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 2*listLimit)
		defer stop()
		kube := cluster(nil)
		kube.PrependReactor("list", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.(clienttesting.ListActionImpl).ListOptions.TimeoutSeconds == nil { // the list of the library
				<-ctx.Done()
			}
			return false, nil, nil
		})
		d, notes := newDriver(""), make(chan string, 2)
		d.Kube, d.Note = kube, func(problem string) { notes <- problem }
		_, err := d.control(ctx, &resourceslice.DriverResources{})
		notes <- "no reason"
		if noted := <-notes; !errors.Is(err, context.DeadlineExceeded) || noted != noList {
			t.Errorf("the operator sees %q, and the result is %v", noted, err)
		}
	})
}

// The kubelet reports each refusal in an event of the pod.
func TestRefused(t *testing.T) {
	recorded := "" // by metalplugd, for the operator
	d := daemon(t, func(_ string, ask api.Claim) (api.Prepared, *api.Refused) {
		recorded = ask.Invalid
		return api.Prepared{}, &api.Refused{Code: 503, Text: "metalplugd: " + cmp.Or(ask.Invalid, "its devices are being erased for 40s")}
	})
	result := resourceapi.DeviceRequestAllocationResult{Driver: DriverName, Request: "r", Pool: "n1", Device: "a-1"}
	unknown, elsewhere := result, result
	unknown.Device, elsewhere.Pool = "a-4", "n2"
	configured := claim(result)
	configured.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: DriverName}},
	}}
	for text, c := range map[string]*resourceapi.ResourceClaim{
		"being erased": claim(result), "does not have the device a-4": claim(unknown), "pool n2": claim(elsewhere), "opaque": configured,
	} {
		if got := prepared(t, d, c).Err; got == nil || !strings.HasPrefix(got.Error(), "metalplugd: ") || !strings.Contains(got.Error(), text) {
			t.Errorf("the error is %v, not %q", got, text)
		}
	}
	long := "forbidden" + strings.Repeat("<", 991) // metalplugd refuses a request of more than 16 KiB
	if d.recordFailure([]*drapb.Claim{{Uid: "u1"}}, errors.New(long+strings.Repeat("<", 20_000))); recorded != long {
		t.Errorf("metalplugd has recorded %d bytes: %.20q", len(recorded), recorded)
	}
}

// While metalplugd works on a pod's first claim, the pod's second claim is released.
func TestUnprepare(t *testing.T) {
	released := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/claims/{uid}/unprepare", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("uid") == "first" {
			select {
			case <-released:
			case <-r.Context().Done():
			}
		} else {
			close(released)
		}
		_, _ = w.Write([]byte("{}"))
	})
	d := newDriver(serve(t, mux))
	ctx, end := context.WithTimeout(t.Context(), 10*time.Second)
	defer end()
	all, err := d.UnprepareResourceClaims(ctx, []kubeletplugin.NamespacedObject{{UID: "first"}, {UID: "second"}})
	if err != nil || len(all) != 2 || all["first"] != nil || all["second"] != nil {
		t.Errorf("the kubelet gets %v, %v", all, err)
	}
}

// If a pod ends while metalplugd is down, the kubelet gets an error and repeats the call. An error of the whole call to prepare
// claims makes metalplug-dra repeat it.
func TestNoDaemon(t *testing.T) {
	d := newDriver(filepath.Join(t.TempDir(), "s"))
	all, err := d.UnprepareResourceClaims(context.Background(), []kubeletplugin.NamespacedObject{{UID: types.UID("u1")}})
	if err != nil || all["u1"] == nil {
		t.Errorf("the kubelet gets %v, %v", all, err)
	}
	if _, err := d.PrepareResourceClaims(context.Background(), nil); err == nil {
		t.Error("a claim is prepared without metalplugd")
	}
	d.state.Store(&state{devices: map[string]api.Device{"a-1": {ID: "A_1"}}})
	c := claim(resourceapi.DeviceRequestAllocationResult{Driver: DriverName, Request: "r", Pool: "n1", Device: "a-1"})
	if all, err := d.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{c}); !errors.Is(err, api.ErrNoAnswer) {
		t.Errorf("while metalplugd is down, the kubelet gets %v, %v", all, err)
	}
}
