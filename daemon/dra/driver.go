// SPDX-License-Identifier: Apache-2.0

// Package dra is the driver for Dynamic Resource Allocation. The package publishes metalplugd's devices in ResourceSlices, and
// passes claims from the kubelet to metalplugd. The driver saves no state, because metalplugd records which claims hold a device.
package dra

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/internal/liveness"
)

// DriverName is the driver's name in claims, device classes and ResourceSlices.
const DriverName = "metalplug.io"

const (
	// syncDelay is the time for each slice of the pool until the controller restores a ResourceSlice that another client has
	// changed. The kubelet deletes all of its node's slices when it starts. An API server needs about this time for each deletion,
	// and the controller must not rewrite slices that are about to be deleted. The library's default would leave the node without
	// devices for 30 s.
	syncDelay = 5 * time.Millisecond
	// watchLag is how long the controller remembers its own writes that the watch has not shown yet. If the watch takes longer,
	// the controller writes a slice twice. If a slice is deleted before the watch has shown the slice, the slice stays missing
	// for this time.
	watchLag = time.Second
	// initialBackoff and maxBackoff are the limits for the time between two attempts to list the ResourceSlices or to write one.
	initialBackoff = 5 * time.Millisecond
	maxBackoff     = 10 * time.Second
	// listLimit is how long the API server may take to list the ResourceSlices before the driver reports a problem. listLimit also
	// limits the dry run of checkFeatures.
	listLimit = 10 * time.Second
	// retryInterval is the time between two attempts to reach metalplugd.
	retryInterval = 500 * time.Millisecond
)

// noList is the reason that the operator sees while the library waits for the list of ResourceSlices.
const noList = "the ResourceSlices are not written: the API server does not list them"

// Options configures the driver. Every field except Listen must be set.
type Options struct {
	Node    string // name of the Node, which is also the pool's name
	Kube    kubernetes.Interface
	Control string // metalplugd's control socket, or its socket for claims
	Kubelet string // the kubelet's root directory
	// Listen returns the socket that systemd passed for a path, or nil if there is none.
	Listen func(ctx context.Context, path string) (net.Listener, error)
	Log    *slog.Logger
	// Note reports a problem with the cluster to the operator. An empty text means that the problem is over. Run also calls Note
	// after each value from Used, because the driver's identity may have been renewed.
	Note func(problem string)
	Used chan struct{} // has a buffer of one, which is filled after each request to the API server
}

// The library serves device health only if the driver implements this interface.
var _ health.DRAResourceHealthServer = (*driver)(nil)

type driver struct {
	Options
	health.UnimplementedDRAResourceHealthServer
	client api.Client
	fail   context.CancelCauseFunc // makes Run end

	state     atomic.Pointer[state] // state from metalplugd's last answer; before the first answer, its field devices is nil
	unwritten atomic.Value          // reason why the last attempt to write the slices failed, or "" or nil if there is no reason
}

// queue is the controller's queue. queue reports each successful attempt to write the slices.
type queue struct {
	workqueue.TypedRateLimitingInterface[string]
	d *driver
}

// Forget is called by the controller after each successful attempt.
func (q queue) Forget(pool string) {
	q.TypedRateLimitingInterface.Forget(pool)
	q.d.attempt(context.Background(), nil, "")
}

// Run serves the kubelet and publishes the devices until ctx ends or a part fails. Run returns the cause. Run calls ready when
// the kubelet can connect. After Run returns, the ResourceSlices remain. The kubelet removes them if no driver connects within 30
// s.
func Run(ctx context.Context, o Options, ready func()) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	d := &driver{Options: o, client: api.Client{Socket: o.Control}, fail: fail}
	d.state.Store(&state{replaced: make(chan struct{})})
	data := filepath.Join(o.Kubelet, "plugins", DriverName)
	if o.Listen == nil {
		if err := os.MkdirAll(data, 0o750); err != nil {
			return err
		}
	}
	served := requests{stop: make(chan struct{}), failed: d.recordFailure, registered: make(chan struct{}, 1)}
	helper, err := kubeletplugin.Start(context.WithoutCancel(ctx), d,
		kubeletplugin.DriverName(DriverName), kubeletplugin.NodeName(o.Node), kubeletplugin.KubeClient(o.Kube),
		kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(o.Kubelet, "plugins_registry")),
		kubeletplugin.PluginListener(o.Listen), kubeletplugin.RegistrarListener(o.Listen),
		kubeletplugin.GRPCInterceptor(served.intercept), kubeletplugin.Serialize(false)) // metalplugd serializes each claim's requests
	if err != nil {
		return err
	}
	defer helper.Stop()
	defer served.drain()
	ready()
	dirty := make(chan struct{}, 1)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { d.follow(ctx, dirty) })
	d.publish(ctx, dirty, served.registered)
	return context.Cause(ctx)
}

// follow sends to the channel dirty after each event from metalplugd and after each new connection, until ctx ends.
func (d *driver) follow(ctx context.Context, dirty chan<- struct{}) {
	for available := true; ; {
		events, err := d.client.Stream(ctx, "/v1/events")
		if err == nil {
			available = true
			lines := bufio.NewScanner(events)
			for lines.Scan() {
				liveness.Poke(dirty)
			}
			events.Close()
			err = fmt.Errorf("%w: %w", api.ErrNoAnswer, cmp.Or(lines.Err(), io.EOF))
		}
		if ctx.Err() == nil && available {
			available = false
			d.Log.Warn("metalplugd unavailable", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryInterval):
		}
	}
}

// publish writes each new state to the ResourceSlices until ctx ends. If metalplugd does not answer, the ResourceSlices stay as
// they are. When a kubelet registers the driver, the machine may have joined a cluster as a new Node. The old controller would
// continue to use the old Node's UID and slices, so publish starts a new controller. publish also starts a new controller if the
// controller has created more slices than exist now. In this case, another client has deleted slices, for example the garbage
// collector, which deletes all slices with the UID of a deleted Node.
func (d *driver) publish(ctx context.Context, dirty, registered <-chan struct{}) {
	var pools layout
	var controller *resourceslice.Controller
	defer func() { controller.Stop() }()
	var server features
	var problem string         // why shared devices are not published, or ""
	var retry <-chan time.Time // nil if the last attempt was successful
	for current, backoff := false, initialBackoff; ; {
		unwritten, _ := d.unwritten.Load().(string)
		d.Note(cmp.Or(unwritten, problem))
		select {
		case <-ctx.Done():
			return
		case <-dirty:
		case <-registered:
			current, backoff, server.current = false, initialBackoff, false
		case <-d.Used:
			if !current || controller.GetStats().NumCreates <= int64(len(pools)) {
				continue
			}
			current, backoff = false, initialBackoff
		case <-retry:
		}
		retry = nil
		s, err := d.fetch(ctx)
		if err != nil { // follow logs that metalplugd cannot be reached
			retry = time.After(retryInterval)
			continue
		}
		if server = d.checkFeatures(ctx, server); !server.current {
			retry = time.After(retryInterval)
		}
		before := problem
		problem = ""
		if s.shared {
			problem = server.noSharing
		}
		if problem != "" && problem != before {
			d.Log.Warn("shared devices not published", "reason", problem)
		}
		maps.DeleteFunc(s.claimed, func(name string, shares int64) bool {
			return shares > 1 && problem != "" || !server.taints && len(taints(s.devices[name])) > 0
		})
		close(d.state.Swap(&s).replaced)
		pools = pools.place(s.claimed)
		resources := &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.Node: pools.pool(s)}}
		if current {
			controller.Update(resources)
			continue
		}
		next, err := d.control(ctx, resources)
		if err != nil {
			d.attempt(ctx, err, "starting the controller")
			retry, backoff = time.After(backoff), min(2*backoff, maxBackoff)
		}
		controller.Stop()
		controller, current = next, err == nil
	}
}

// control starts the controller that writes the ResourceSlices. The controller reads the Node's UID when it starts. control
// blocks until the API server has listed the node's slices, or ctx ends. The library repeats a failed list without an error, so
// control first lists the slices itself. control returns an error if this list fails or takes longer than listLimit. If the
// library's list takes longer, control reports the problem, and the library continues.
func (d *driver) control(ctx context.Context, resources *resourceslice.DriverResources) (*resourceslice.Controller, error) {
	own := metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + d.Node, ResourceVersion: "0", TimeoutSeconds: new(int64(listLimit.Seconds()))}
	if _, err := d.Kube.ResourceV1().ResourceSlices().List(ctx, own); err != nil {
		return nil, err
	}
	defer time.AfterFunc(listLimit, func() { d.Log.Warn("resource slices not written", "reason", noList); d.Note(noList) }).Stop()
	return resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: DriverName, KubeClient: d.Kube, Resources: resources,
		Owner:     &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: d.Node},
		SyncDelay: new(syncDelay * time.Duration(len(resources.Pools[d.Node].Slices))), MutationCacheTTL: new(watchLag), ErrorHandler: d.attempt,
		Queue: queue{workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](initialBackoff, maxBackoff)), d},
	})
}

// attempt records the result of an attempt to write the slices, and wakes publish. attempt logs an error, unless the driver is
// stopping.
func (d *driver) attempt(ctx context.Context, err error, message string) {
	d.unwritten.Store("")
	if err != nil && ctx.Err() == nil {
		d.unwritten.Store(fmt.Sprintf("the ResourceSlices are not written: %v", err))
		d.Log.Warn("resource slices not written", "action", message, "err", err)
	}
	liveness.Poke(d.Used)
}

// features describes which optional fields of a ResourceSlice the API server stores.
type features struct {
	current   bool   // whether the answer was given after the last registration
	known     bool   // whether the API server has ever answered
	noSharing string // why devices with shares are not published, or ""
	taints    bool   // whether the API server stores taints
}

// checkFeatures returns the API server's current answer. Without the feature gates DRAConsumableCapacity and DRADeviceTaints, an
// API server drops the fields for sharing and the taints. The scheduler would then give a shared device to only one claim, or
// give a claim an Unhealthy device. checkFeatures creates a slice in a dry run, which changes nothing. If the API server does not
// answer, its last answer still applies, and checkFeatures must be called again.
func (d *driver) checkFeatures(ctx context.Context, last features) features {
	if last.current {
		return last
	}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: d.Node + "-"}}
	slice.Spec = resourceapi.ResourceSliceSpec{
		Driver: DriverName, NodeName: &d.Node, Pool: resourceapi.ResourcePool{Name: d.Node, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{newDevice("shared", api.Device{Cordoned: true}, 2)},
	}
	ctx, end := context.WithTimeout(ctx, listLimit)
	defer end()
	stored, err := d.Kube.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil && last.known {
		return last
	} else if err != nil {
		return features{noSharing: err.Error()}
	}
	server := features{current: true, known: true, taints: len(stored.Spec.Devices[0].Taints) > 0}
	if stored.Spec.Devices[0].AllowMultipleAllocations == nil {
		server.noSharing = api.NoSharing
	}
	return server
}

// fetch gets the resources and devices from metalplugd.
func (d *driver) fetch(ctx context.Context) (state, error) {
	var status api.Status
	var devices []api.Device
	if err := d.client.Get(ctx, "/v1/status", &status); err != nil {
		return state{}, err
	}
	if !status.Ready {
		return state{}, errors.New("metalplugd has just started, and has not inspected all devices yet")
	}
	if err := d.client.Get(ctx, "/v1/devices", &devices); err != nil {
		return state{}, err
	}
	return newState(status.Resources, devices), nil
}

// HandleError stops the driver, because a gRPC server for the kubelet has failed.
func (d *driver) HandleError(_ context.Context, err error, message string) {
	d.fail(fmt.Errorf("%s: %w", message, err))
}
