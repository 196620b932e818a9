// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// codeKilled is the exit code of a process that SIGKILL has ended. As in a shell, it is 128 plus the number of the signal.
const codeKilled = 128 + 9

type container struct {
	id, sandbox                string
	config                     *api.ContainerConfig
	log                        string
	got                        got
	state                      api.ContainerState
	created, started, finished int64 // Unix time in nanoseconds
	code                       int32
	program                    *program // nil if the container has no program
}

// got lists everything that a container would get.
type got struct {
	Env     map[string]string `json:"env"`
	Mounts  []mount           `json:"mounts,omitempty"`
	Devices []node            `json:"devices,omitempty"` // devices from the device plugin
	CDI     []string          `json:"cdi,omitempty"`     // names of CDI devices
	Spec    *oci.Spec         `json:"spec,omitempty"`    // changes that the CDI specs make
}

type mount struct {
	Host      string `json:"host"`
	Container string `json:"container"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
}

type node struct {
	Host        string `json:"host"`
	Container   string `json:"container"`
	Permissions string `json:"permissions"`
}

// gotOf returns what a container would get. Like containerd, it returns an error if a CDI device is not in the specs.
func gotOf(c *api.ContainerConfig) (got, error) {
	g := got{Env: make(map[string]string)}
	for _, e := range c.GetEnvs() {
		g.Env[e.GetKey()] = string(e.GetValue())
	}
	for _, m := range c.GetMounts() {
		g.Mounts = append(g.Mounts, mount{m.GetHostPath(), m.GetContainerPath(), m.GetReadonly()})
	}
	for _, d := range c.GetDevices() {
		g.Devices = append(g.Devices, node{d.GetHostPath(), d.GetContainerPath(), d.GetPermissions()})
	}
	for _, d := range c.GetCDIDevices() {
		g.CDI = append(g.CDI, d.GetName())
	}
	if len(g.CDI) == 0 {
		return g, nil
	}
	g.Spec = &oci.Spec{}
	if unknown, err := cdi.InjectDevices(g.Spec, g.CDI...); err != nil {
		return g, fmt.Errorf("inject CDI devices: %w; not known: %v", err, unknown)
	}
	return g, nil
}

func (r *runtime) CreateContainer(_ context.Context, req *api.CreateContainerRequest) (*api.CreateContainerResponse, error) {
	g, err := gotOf(req.GetConfig())
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[req.GetPodSandboxId()]
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "no sandbox %q", req.GetPodSandboxId())
	}
	c := &container{
		id: rand.Text(), sandbox: s.id, config: req.GetConfig(), got: g, created: time.Now().UnixNano(),
		log: filepath.Join(s.config.GetLogDirectory(), req.GetConfig().GetLogPath()),
	}
	r.containers[c.id] = c
	return &api.CreateContainerResponse{ContainerId: c.id}, nil
}

func (r *runtime) StartContainer(_ context.Context, req *api.StartContainerRequest) (*api.StartContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := r.find(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if err := c.writeLog(); err != nil {
		return nil, err
	}
	c.state, c.started = api.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	switch command := c.config.GetCommand(); {
	case len(command) == 2 && command[0] == "exit":
		code, err := strconv.ParseInt(command[1], 10, 32)
		if err != nil {
			return nil, err
		}
		c.end(int32(code))
	case len(command) > 0 && filepath.IsAbs(command[0]):
		if c.program, err = start(command, c.got.Env, c.log); err != nil {
			return nil, err
		}
		go r.await(c)
	}
	return &api.StartContainerResponse{}, nil
}

// await ends a container when its program has ended.
func (r *runtime) await(c *container) {
	<-c.program.done
	r.mu.Lock()
	defer r.mu.Unlock()
	c.end(int32(c.program.code()))
}

// writeLog begins the log with a line about everything that the container got.
func (c *container) writeLog() error {
	text, err := json.Marshal(c.got)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.log), 0o755); err != nil {
		return err
	}
	return os.WriteFile(c.log, logLine(text), 0o600)
}

// end marks a running container as ended, and kills its program.
func (c *container) end(code int32) {
	if c.state == api.ContainerState_CONTAINER_EXITED {
		return
	}
	c.program.kill()
	c.state, c.code, c.finished = api.ContainerState_CONTAINER_EXITED, code, time.Now().UnixNano()
}

// find returns a container. The caller holds mu.
func (r *runtime) find(id string) (*container, error) {
	if c := r.containers[id]; c != nil {
		return c, nil
	}
	return nil, status.Errorf(codes.NotFound, "no container %q", id)
}

func (r *runtime) StopContainer(_ context.Context, req *api.StopContainerRequest) (*api.StopContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := r.find(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if p := c.program; p != nil {
		r.mu.Unlock()
		p.stop(time.Duration(req.GetTimeout()) * time.Second)
		r.mu.Lock()
	}
	c.end(codeKilled)
	return &api.StopContainerResponse{}, nil
}

func (r *runtime) RemoveContainer(_ context.Context, req *api.RemoveContainerRequest) (*api.RemoveContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[req.GetContainerId()]; c != nil {
		c.end(codeKilled)
	}
	delete(r.containers, req.GetContainerId())
	return &api.RemoveContainerResponse{}, nil
}

func (r *runtime) ContainerStatus(_ context.Context, req *api.ContainerStatusRequest) (*api.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := r.find(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	reason := ""
	switch {
	case c.state != api.ContainerState_CONTAINER_EXITED:
	case c.code == 0:
		reason = "Completed"
	default:
		reason = "Error"
	}
	return &api.ContainerStatusResponse{Status: &api.ContainerStatus{
		Id: c.id, Metadata: c.config.GetMetadata(), State: c.state, CreatedAt: c.created, StartedAt: c.started,
		FinishedAt: c.finished, ExitCode: c.code, Reason: reason, Image: c.config.GetImage(), ImageRef: c.config.GetImage().GetImage(),
		ImageId: c.config.GetImage().GetImage(), Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		Mounts: c.config.GetMounts(), LogPath: c.log,
	}}, nil
}

func (r *runtime) ListContainers(_ context.Context, req *api.ListContainersRequest) (*api.ListContainersResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, list := req.GetFilter(), &api.ListContainersResponse{}
	for _, c := range r.containers {
		if f.GetId() != "" && f.GetId() != c.id || f.GetPodSandboxId() != "" && f.GetPodSandboxId() != c.sandbox ||
			f.GetState() != nil && f.GetState().State != c.state || !match(f.GetLabelSelector(), c.config.GetLabels()) {
			continue
		}
		list.Containers = append(list.Containers, &api.Container{
			Id: c.id, PodSandboxId: c.sandbox, Metadata: c.config.GetMetadata(), Image: c.config.GetImage(),
			ImageRef: c.config.GetImage().GetImage(), ImageId: c.config.GetImage().GetImage(), State: c.state, CreatedAt: c.created,
			Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		})
	}
	return list, nil
}

func (r *runtime) ListContainerStats(context.Context, *api.ListContainerStatsRequest) (*api.ListContainerStatsResponse, error) {
	return &api.ListContainerStatsResponse{}, nil
}

func (r *runtime) ReopenContainerLog(context.Context, *api.ReopenContainerLogRequest) (*api.ReopenContainerLogResponse, error) {
	return &api.ReopenContainerLogResponse{}, nil // nothing to do, because each write opens the log
}
