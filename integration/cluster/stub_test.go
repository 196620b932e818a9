// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// stub is a small DRA driver with 40 devices, of which several claims can have the first. It may have a fault.
type stub struct {
	registration.UnimplementedRegistrationServer
	drapb.UnimplementedDRAPluginServer
	health.UnimplementedDRAResourceHealthServer
	kube             kubernetes.Interface
	fault            string
	name, node, dir  string
	servers          []*grpc.Server
	publishing       sync.WaitGroup
	stop             context.CancelFunc
	starts           int
	notified, serial atomic.Int64
	running          atomic.Int64 // requests
	mu               sync.Mutex
	prepared         map[string]int    // claims to the start in which they were prepared
	owners           map[string]string // devices to the claim that had it first
}

// stub starts a driver with this fault, or without one.
func (s *story) stub(fault string) *stub {
	s.Helper()
	dir, err := os.MkdirTemp("", "stub")
	s.must(err)
	s.Cleanup(func() { os.RemoveAll(dir) })
	label := strings.ReplaceAll("stub-"+cmp.Or(fault, "good"), " ", "-")
	d := &stub{
		kube: s.cluster.Client, fault: fault, name: filepath.Base(dir) + ".example.com", node: label, dir: dir,
		prepared: make(map[string]int), owners: make(map[string]string),
	}
	_, err = d.kube.CoreV1().Nodes().Create(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: label}}, metav1.CreateOptions{})
	s.must(err)
	s.must(os.Mkdir(d.cdi(), 0o755))
	s.must(d.start())
	return d
}

func (d *stub) cdi() string { return filepath.Join(d.dir, "cdi") }

func (d *stub) start() error {
	d.starts++
	for name, register := range map[string]func(*grpc.Server){
		"reg.sock": func(g *grpc.Server) { registration.RegisterRegistrationServer(g, d) },
		"dra.sock": func(g *grpc.Server) {
			drapb.RegisterDRAPluginServer(g, d)
			if d.fault != "service" {
				health.RegisterDRAResourceHealthServer(g, d)
			}
		},
	} {
		l, err := net.Listen("unix", filepath.Join(d.dir, name))
		if err != nil {
			return err
		}
		g := grpc.NewServer()
		register(g)
		d.servers = append(d.servers, g)
		go g.Serve(l)
	}
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	first := d.publish(ctx)
	d.publishing.Go(func() {
		for d.fault != "wipe" && ctx.Err() == nil {
			_ = d.publish(ctx) // a failure is repaired in the next round
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return first
}

// pause ends what start has started.
func (d *stub) pause() {
	d.stop()
	d.publishing.Wait()
	for _, g := range d.servers {
		g.Stop()
	}
	d.servers = nil
}

// close ends the driver, and deletes its slices.
func (d *stub) close() {
	d.pause()
	_ = d.unpublish() // another stub has another name
	_ = d.kube.CoreV1().Nodes().Delete(context.Background(), d.node, metav1.DeleteOptions{})
}

func (d *stub) restart() error {
	d.pause()
	if d.fault == "recreated" || d.fault == "renamed" {
		if err := d.unpublish(); err != nil {
			return err
		}
	}
	return d.start()
}

func (d *stub) boot() error {
	d.pause()
	if err := errors.Join(os.RemoveAll(d.cdi()), os.Mkdir(d.cdi(), 0o755)); err != nil {
		return err
	}
	return d.start()
}

func (d *stub) unpublish() error {
	return d.kube.ResourceV1().ResourceSlices().DeleteCollection(context.Background(), metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "spec.driver=" + d.name})
}

func (d *stub) device(i int) string {
	if d.fault == "renamed" {
		return fmt.Sprintf("device-%d-%d", d.starts, i)
	}
	return fmt.Sprintf("device-%d", i)
}

// publish creates the slice if it does not exist, and a second one for a fault.
func (d *stub) publish(ctx context.Context) error {
	slice := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: d.name}}
	slice.Spec = resourceapi.ResourceSliceSpec{
		Driver: d.name, NodeName: &d.node, Pool: resourceapi.ResourcePool{Name: d.node, ResourceSliceCount: 1},
	}
	bus := "0000:01:00.0"
	if d.fault == "bus" {
		bus = "01:00.0"
	}
	for i := range 40 {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
			Name:       d.device(i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"resource.kubernetes.io/pciBusID": {StringValue: &bus}},
		})
	}
	several := true
	slice.Spec.Devices[0].AllowMultipleAllocations = &several
	all := []resourceapi.ResourceSlice{slice}
	if d.fault == "count" || d.fault == "twins" {
		all[0].Spec.Pool.ResourceSliceCount = 2
	}
	if d.fault == "twins" {
		second := *all[0].DeepCopy()
		second.Name += "-2"
		all = append(all, second)
	}
	for _, slice := range all {
		if _, err := d.kube.ResourceV1().ResourceSlices().Create(ctx, &slice, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

func (d *stub) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	info := &registration.PluginInfo{
		Type: registration.DRAPlugin, Name: d.name, Endpoint: filepath.Join(d.dir, "dra.sock"),
		SupportedVersions: []string{drapb.DRAPluginService, health.DRAResourceHealth_ServiceDesc.ServiceName},
	}
	if d.fault == "type" {
		info.Type = registration.CSIPlugin
	}
	return info, nil
}

func (d *stub) NotifyRegistrationStatus(context.Context, *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if d.notified.Add(1) > 1 && d.fault == "notify" {
		return nil, errors.New("registered already")
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *stub) NodePrepareResources(ctx context.Context, r *drapb.NodePrepareResourcesRequest) (*drapb.NodePrepareResourcesResponse, error) {
	at := d.running.Add(1)
	defer d.running.Add(-1)
	if d.fault == "empty" && len(r.Claims) == 0 {
		return nil, errors.New("no claim")
	}
	if d.fault == "race" {
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	answer := &drapb.NodePrepareResourcesResponse{Claims: make(map[string]*drapb.NodePrepareResourceResponse)}
	for i, c := range r.Claims {
		if i > 0 && d.fault == "first" {
			continue
		}
		var a drapb.NodePrepareResourceResponse
		devices, err := d.prepare(ctx, c, at)
		if err != nil {
			a.Error = err.Error()
		} else {
			a.Devices = devices
		}
		answer.Claims[c.Uid] = &a
	}
	return answer, nil
}

// prepare is for the request number at of those that run.
func (d *stub) prepare(ctx context.Context, c *drapb.Claim, at int64) (devices []*drapb.Device, err error) {
	claim, err := d.kube.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && d.fault == "missing":
		return nil, nil
	case err != nil:
		return nil, err
	case string(claim.UID) != c.Uid && d.fault != "uid":
		return nil, errors.New("the claim was replaced")
	case claim.Status.Allocation == nil:
		return nil, errors.New("the claim is not allocated")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	started, known := d.prepared[c.Uid]
	if !known {
		started = d.starts
		d.prepared[c.Uid] = started
	}
	if d.fault == "forgets" && started < d.starts {
		return nil, errors.New("the claim is in the checkpoint and not in memory")
	}
	id := "of-" + c.Uid // this version of CDI does not allow a digit at the start
	if d.fault == "new name" || d.fault == "race" && at > 1 {
		id += fmt.Sprintf("-%d", d.serial.Add(1))
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != d.name && d.fault != "foreign" || d.fault == "eight" && len(devices) == 8 {
			continue
		}
		name := result.Device
		if d.fault == "other" {
			name = d.device(39)
		}
		if owner := d.owners[name]; d.fault == "owner" && owner != "" && owner != c.Uid {
			return nil, fmt.Errorf("device %s is of claim %s", name, owner)
		}
		d.owners[name] = c.Uid
		share := (*string)(result.ShareID)
		if d.fault == "share" {
			share = nil
		}
		if d.fault == "same name" {
			id = "of-" + name
		}
		devices = append(devices, &drapb.Device{
			RequestNames: []string{result.Request}, PoolName: result.Pool, DeviceName: name, CdiDeviceIds: []string{d.name + "/claim=" + id}, ShareId: share,
		})
	}
	if d.fault == "late spec" || d.fault == "checkpoint" && known {
		return devices, nil
	}
	return devices, d.write(c.Uid, id)
}

// spec returns the CDI spec of a claim.
func (d *stub) spec(uid string) string {
	if d.fault == "one file" {
		uid = "all"
	}
	return filepath.Join(d.cdi(), uid+".json")
}

func (d *stub) write(uid, id string) error {
	text, err := json.Marshal(map[string]any{
		"cdiVersion": "0.3.0", "kind": d.name + "/claim",
		"devices": []any{map[string]any{"name": id, "containerEdits": map[string]any{"env": []string{"STUB=" + uid}}}},
	})
	if err != nil {
		return err
	}
	return replace(d.spec(uid), text)
}

func (d *stub) NodeUnprepareResources(ctx context.Context, r *drapb.NodeUnprepareResourcesRequest) (*drapb.NodeUnprepareResourcesResponse, error) {
	if d.fault == "empty" && len(r.Claims) == 0 {
		return nil, errors.New("no claim")
	}
	answer := &drapb.NodeUnprepareResourcesResponse{Claims: make(map[string]*drapb.NodeUnprepareResourceResponse)}
	for _, c := range r.Claims {
		var a drapb.NodeUnprepareResourceResponse
		if err := d.unprepare(ctx, c); err != nil {
			a.Error = err.Error()
		}
		answer.Claims[c.Uid] = &a
	}
	return answer, nil
}

func (d *stub) unprepare(ctx context.Context, c *drapb.Claim) error {
	if d.fault == "claim" {
		if _, err := d.kube.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{}); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fault == "stays" || d.fault == "leaves" && d.prepared[c.Uid] < d.starts {
		return nil
	}
	if d.fault == "clears" {
		return errors.Join(os.RemoveAll(d.cdi()), os.Mkdir(d.cdi(), 0o755))
	}
	err := os.Remove(d.spec(c.Uid))
	if errors.Is(err, fs.ErrNotExist) && d.fault != "known" {
		err = nil
	}
	if err == nil {
		delete(d.prepared, c.Uid)
	}
	return err
}

func (d *stub) NodeWatchResources(_ *health.NodeWatchResourcesRequest, to grpc.ServerStreamingServer[health.NodeWatchResourcesResponse]) error {
	answer, at := &health.NodeWatchResourcesResponse{}, time.Now()
	if d.fault == "future" {
		at = at.Add(time.Hour)
	}
	for i := range 40 {
		if d.fault == "health" && i == 7 {
			continue
		}
		answer.Devices = append(answer.Devices, &health.DeviceHealth{
			Device: &health.DeviceIdentifier{PoolName: d.node, DeviceName: d.device(i)}, Health: health.HealthStatus_HEALTHY, LastUpdatedTime: at.Unix(),
		})
	}
	if err := to.Send(answer); err != nil {
		return err
	}
	<-to.Context().Done()
	return nil
}
