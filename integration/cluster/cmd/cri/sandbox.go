// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtime is the RuntimeService. It answers all other calls with Unimplemented.
type runtime struct {
	api.UnimplementedRuntimeServiceServer
	cgroup string // directory with a subdirectory for each pod

	mu         sync.Mutex
	count      int // number of all sandboxes since the start
	sandboxes  map[string]*sandbox
	containers map[string]*container
}

type sandbox struct {
	id      string
	config  *api.PodSandboxConfig
	state   api.PodSandboxState
	created int64
	ip      string
}

func newRuntime(cgroup string) *runtime {
	return &runtime{cgroup: cgroup, sandboxes: make(map[string]*sandbox), containers: make(map[string]*container)}
}

func (r *runtime) podCgroup(s *sandbox) string {
	return filepath.Join(r.cgroup, "pod"+s.config.GetMetadata().GetUid())
}

func (r *runtime) Version(context.Context, *api.VersionRequest) (*api.VersionResponse, error) {
	return &api.VersionResponse{Version: "0.1.0", RuntimeName: "metalplug-cri", RuntimeVersion: "1.0.0", RuntimeApiVersion: "v1"}, nil
}

func (r *runtime) Status(context.Context, *api.StatusRequest) (*api.StatusResponse, error) {
	return &api.StatusResponse{Status: &api.RuntimeStatus{Conditions: []*api.RuntimeCondition{
		{Type: api.RuntimeReady, Status: true}, {Type: api.NetworkReady, Status: true},
	}}}, nil
}

func (r *runtime) RuntimeConfig(context.Context, *api.RuntimeConfigRequest) (*api.RuntimeConfigResponse, error) {
	return &api.RuntimeConfigResponse{Linux: &api.LinuxRuntimeConfiguration{CgroupDriver: api.CgroupDriver_CGROUPFS}}, nil
}

func (r *runtime) UpdateRuntimeConfig(context.Context, *api.UpdateRuntimeConfigRequest) (*api.UpdateRuntimeConfigResponse, error) {
	return &api.UpdateRuntimeConfigResponse{}, nil
}

func (r *runtime) RunPodSandbox(_ context.Context, req *api.RunPodSandboxRequest) (*api.RunPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	s := &sandbox{id: rand.Text(), config: req.GetConfig(), created: time.Now().UnixNano()}
	s.ip = fmt.Sprintf("10.88.%d.%d", r.count>>8&0xff, r.count&0xff)
	if err := os.MkdirAll(r.podCgroup(s), 0o755); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.config.GetLogDirectory(), 0o755); err != nil {
		return nil, err
	}
	r.sandboxes[s.id] = s
	return &api.RunPodSandboxResponse{PodSandboxId: s.id}, nil
}

func (r *runtime) StopPodSandbox(_ context.Context, req *api.StopPodSandboxRequest) (*api.StopPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &api.StopPodSandboxResponse{}, r.stop(req.GetPodSandboxId())
}

// stop ends a sandbox and its containers. The caller holds mu.
func (r *runtime) stop(id string) error {
	s := r.sandboxes[id]
	if s == nil || s.state == api.PodSandboxState_SANDBOX_NOTREADY {
		return nil
	}
	for _, c := range r.containers {
		if c.sandbox == id {
			c.end(codeKilled)
		}
	}
	s.state = api.PodSandboxState_SANDBOX_NOTREADY
	if err := os.Remove(r.podCgroup(s)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (r *runtime) RemovePodSandbox(_ context.Context, req *api.RemovePodSandboxRequest) (*api.RemovePodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.stop(req.GetPodSandboxId()); err != nil {
		return nil, err
	}
	for id, c := range r.containers {
		if c.sandbox == req.GetPodSandboxId() {
			delete(r.containers, id)
		}
	}
	delete(r.sandboxes, req.GetPodSandboxId())
	return &api.RemovePodSandboxResponse{}, nil
}

func (r *runtime) PodSandboxStatus(_ context.Context, req *api.PodSandboxStatusRequest) (*api.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[req.GetPodSandboxId()]
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "no sandbox %q", req.GetPodSandboxId())
	}
	return &api.PodSandboxStatusResponse{Status: &api.PodSandboxStatus{
		Id: s.id, Metadata: s.config.GetMetadata(), State: s.state, CreatedAt: s.created,
		Labels: s.config.GetLabels(), Annotations: s.config.GetAnnotations(),
		Network: &api.PodSandboxNetworkStatus{Ip: s.ip},
		Linux: &api.LinuxPodSandboxStatus{Namespaces: &api.Namespace{
			Options: s.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	}}, nil
}

func (r *runtime) ListPodSandbox(_ context.Context, req *api.ListPodSandboxRequest) (*api.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, list := req.GetFilter(), &api.ListPodSandboxResponse{}
	for _, s := range r.sandboxes {
		if f.GetId() != "" && f.GetId() != s.id || f.GetState() != nil && f.GetState().State != s.state ||
			!match(f.GetLabelSelector(), s.config.GetLabels()) {
			continue
		}
		list.Items = append(list.Items, &api.PodSandbox{
			Id: s.id, Metadata: s.config.GetMetadata(), State: s.state, CreatedAt: s.created,
			Labels: s.config.GetLabels(), Annotations: s.config.GetAnnotations(),
		})
	}
	return list, nil
}

// match reports whether labels has all labels of a selector.
func match(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func (r *runtime) ListPodSandboxStats(context.Context, *api.ListPodSandboxStatsRequest) (*api.ListPodSandboxStatsResponse, error) {
	return &api.ListPodSandboxStatsResponse{}, nil
}
