// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/internal/liveness"
)

// service implements the DevicePlugin API for an endpoint.
type service struct {
	pluginapi.UnimplementedDevicePluginServer
	*Endpoint
}

// handshake is the time limit for a client's HTTP/2 handshake. A server that is being stopped waits for pending
// handshakes. With gRPC's default of 120 seconds, systemd would kill the daemon during this wait.
const handshake = 5 * time.Second

// newServer returns the endpoint's gRPC server. A panic in a call becomes that call's error and does not end the daemon.
func (e *Endpoint) newServer() *grpc.Server {
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(receiveSize),
		grpc.ConnectionTimeout(handshake),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
			call grpc.UnaryHandler,
		) (_ any, err error) {
			defer e.recovered(info.FullMethod, &err)
			return call(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
			call grpc.StreamHandler,
		) (err error) {
			defer e.recovered(info.FullMethod, &err)
			return call(srv, stream)
		}),
	)
	pluginapi.RegisterDevicePluginServer(server, service{Endpoint: e})
	return server
}

func (e *Endpoint) recovered(method string, err *error) {
	if p := recover(); p != nil {
		*err = status.Errorf(codes.Internal, "%s of %s: internal error: %v", method, e.Resource.Name, p)
		e.Log.Error("panic in a call", "err", *err, "stack", string(debug.Stack()))
	}
}

// options returns the plugin's options for the kubelet. These options always request PreStartContainer calls, in which the plugin
// can still prevent a container from starting if its device is missing.
func options() *pluginapi.DevicePluginOptions {
	return &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}
}

// GetDevicePluginOptions answers immediately, because the kubelet calls it during the Register call.
func (s service) GetDevicePluginOptions(ctx context.Context, _ *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	s.streams.noteClient(clientOf(ctx))
	return options(), nil
}

// ListAndWatch sends the current list immediately, and a new list after each change, until the kubelet disconnects.
func (s service) ListAndWatch(_ *pluginapi.Empty, kubelet grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	st := s.streams.add(clientOf(kubelet.Context()))
	defer s.streams.remove(st)
	sent, last, first, full := uint64(0), 0, true, false
	for {
		snapshot, changed := s.Inventory.Snapshot()
		offer := snapshot.Offer(s.Resource.Name)
		if round, send := s.streams.sendState(); send && (first || offer.Listed != sent || round != last) {
			list, left := s.Resource.response(offer)
			if left > 0 && !full {
				s.Log.Error("list too long", "err", fmt.Errorf("the kubelet accepts at most %d bytes in one message, "+
					"so %d devices are not offered; use fewer shares or a narrower match", listSize, left))
			}
			full = left > 0
			healthy := slices.ContainsFunc(list.Devices, func(d *pluginapi.Device) bool { return d.Health == pluginapi.Healthy })
			s.streams.recordSending(st, sentList{offer.Listed, healthy, s.checkpoint()})
			if err := kubelet.Send(list); err != nil {
				return err
			}
			if !first && !offer.Cause.IsZero() { // the first list on a stream is not caused by an event
				s.Metrics.Sent(time.Since(offer.Cause))
			}
			sent, last, first = offer.Listed, round, false
		}
		select {
		case <-changed:
		case <-st.wake:
		case <-st.stop:
			return nil
		case <-kubelet.Context().Done():
			return kubelet.Context().Err()
		}
	}
}

// Allocate answers from the newest snapshot. Allocate accesses the hardware only to check that the nodes still exist.
func (s service) Allocate(_ context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	snapshot, _ := s.Inventory.Snapshot()
	offer := snapshot.Offer(s.Resource.Name)
	resp := &pluginapi.AllocateResponse{}
	var given []*inventory.Status
	held := make(map[string][]string)
	for _, container := range req.GetContainerRequests() {
		devices, names, err := s.pick(offer, container.GetDevicesIds(), false)
		if err != nil {
			return nil, s.refuse("Allocate", err)
		}
		if err := s.checkUnreserved(devices); err != nil {
			return nil, s.refuse("Allocate", err)
		}
		answer, err := s.answer(devices)
		if err != nil {
			s.Inventory.Inspect(ids(parts(devices))...)
			return nil, s.refuse("Allocate", err)
		}
		resp.ContainerResponses = append(resp.ContainerResponses, answer)
		given = append(given, parts(devices)...)
		for id, as := range names {
			held[id] = append(held[id], as...)
		}
	}
	s.noteAsked()
	s.Inventory.Allocated(held, kubelet.Identify(s.Dir))
	s.Allocated(given)
	s.Metrics.Answered(s.Resource.Name, "Allocate", nil)
	return resp, nil
}

// PreStartContainer refuses a container unless all its devices are present, healthy and prepared.
func (s service) PreStartContainer(ctx context.Context, req *pluginapi.PreStartContainerRequest,
) (*pluginapi.PreStartContainerResponse, error) {
	snapshot, _ := s.Inventory.Snapshot()
	offer := snapshot.Offer(s.Resource.Name)
	devices, names, err := s.pick(offer, req.GetDevicesIds(), true)
	if err != nil {
		return nil, s.refuse("PreStartContainer", err)
	}
	if err := cmp.Or(s.nodesPresent(devices), s.ready(ctx, devices)); err != nil {
		s.Inventory.Inspect(ids(parts(devices))...)
		return nil, s.refuse("PreStartContainer", err)
	}
	if err := s.Start(ctx, parts(devices)); err != nil {
		return nil, s.refuse("PreStartContainer", fmt.Errorf("not ready for the container: %w", err))
	}
	s.Inventory.Starting(names)
	return &pluginapi.PreStartContainerResponse{}, nil
}

// GetPreferredAllocation never fails, because an error would prevent the pod from starting. If it prefers no devices, the answer
// is empty, and the kubelet chooses devices itself.
func (s service) GetPreferredAllocation(_ context.Context, req *pluginapi.PreferredAllocationRequest,
) (*pluginapi.PreferredAllocationResponse, error) {
	snapshot, _ := s.Inventory.Snapshot()
	offer := snapshot.Offer(s.Resource.Name)
	resp := &pluginapi.PreferredAllocationResponse{}
	for _, c := range req.GetContainerRequests() {
		chosen := s.Resource.prefer(offer, c.GetAvailableDeviceIDs(), c.GetMustIncludeDeviceIDs(), int(c.GetAllocationSize()))
		resp.ContainerResponses = append(resp.ContainerResponses,
			&pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: chosen})
	}
	return resp, nil
}

// refuse logs why a container does not get its devices, and returns the error for the kubelet.
func (s service) refuse(call string, err error) error {
	s.Log.Warn("container refused", "action", call, "err", err)
	s.Metrics.Answered(s.Resource.Name, call, err)
	if call == "Allocate" {
		s.Inventory.Allocated(nil, kubelet.Identify(s.Dir))
	}
	if errors.Is(err, errUnknown) { // the ID is from another plugin's list, but the kubelet calls this endpoint
		s.noteAsked()
	}
	return status.Error(codes.FailedPrecondition, err.Error())
}

// noteAsked records that the kubelet has requested devices from this endpoint, which shows that it uses no other plugin for the
// resource.
func (s service) noteAsked() {
	if s.Status().Held != "" {
		s.conflict.asked.Store(true)
		liveness.Poke(s.streams.changed)
	}
}

func ids(devices []*inventory.Status) []string {
	ids := make([]string, len(devices))
	for i, d := range devices {
		ids[i] = d.Device.ID
	}
	return ids
}

// LogTo makes gRPC write its errors to the given log at level debug. By default, gRPC writes them to standard error, and blocks
// if no process reads them. Even without this log, no important error is lost, because the calls to gRPC return these errors.
// LogTo must be called before any other gRPC function.
func LogTo(log *slog.Logger) {
	lines := slog.NewLogLogger(log.Handler(), slog.LevelDebug).Writer()
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, lines))
}
