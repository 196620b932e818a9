// SPDX-License-Identifier: Apache-2.0

// Package helper contains metalplugd's clients for the helpers. The package sends one request for each task on a device, and
// converts the answer for the rest of the daemon. No two helpers work on the same device at the same time.
package helper

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/reset"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/daemon/turnover"
	"github.com/metalplug/metalplug/daemon/unit"
)

const (
	// maxWorking is the maximum number of devices that helpers work on at the same time. metalplug-reset.socket accepts the same
	// number of connections.
	maxWorking = 64
	// maxAsking is the maximum number of simultaneous requests that ask which processes have a device open. For each request, a
	// helper reads the descriptors of all processes. metalplug-holders.socket accepts this many connections, and one more for each
	// metalplug-reset.
	maxAsking = 8
)

// client implements the functions in [device.Touch] by sending requests to the helpers.
type client struct {
	sysfs   sysfs.Tree
	reset   reset.Client
	holders cgroup.Client

	locks sync.Map // maps a sysfs path to a chan struct{} with a buffer of one, which is full while a helper is working on the device

	mu   sync.Mutex
	next *question // the request that other callers may join, or nil
}

// Touch returns the functions that send requests to the helpers. The parameter root is the parent directory of sysfs. The
// parameter file is the configuration file, which a helper that runs as a child process also reads.
func Touch(c config.Reset, root, file string) device.Touch {
	peer := func(program, socket string, most int) exchange.Peer {
		return exchange.Peer{Program: program, Socket: socket, Config: file, Slots: make(chan struct{}, most)}
	}
	h := &client{sysfs: sysfs.Tree{Sys: root}}
	h.reset.Peer, h.holders.Peer = peer(reset.Program, c.Socket, maxWorking), peer(cgroup.Program, c.Holders, maxAsking)
	return device.Touch{Probe: h.probe, Survey: h.survey, Prepare: h.prepare, Holders: h.askHolders}
}

// Unit returns a function for [turnover.Turnover]. The function asks the helper to run a resource's vendor unit for one stage.
func Unit(c config.Reset, file string) func(ctx context.Context, resource, stage, id string) error {
	return unit.Client{Peer: exchange.Peer{Program: unit.Program, Socket: c.Units, Config: file}}.Run
}

// request returns a request for a target. The deadline of ctx determines the request's time limit.
func request(ctx context.Context, do reset.Do, t device.Target) reset.Request {
	r := reset.Request{Do: do, Target: t, TimeoutMS: time.Minute.Milliseconds()}
	if len(t.Pods) > reset.MaxList { // without the list, the helper assumes that any pod may hold the disk
		r.Pods = nil
	}
	if end, ok := ctx.Deadline(); ok {
		r.TimeoutMS = max((time.Until(end) - device.AnswerTime).Milliseconds(), 1)
	}
	return r
}

// lock waits until no helper is working on a device, and then locks it, so that no helper erases a disk while another helper
// reads it.
func (h *client) lock(ctx context.Context, path string) (unlock func(), err error) {
	value, _ := h.locks.LoadOrStore(path, make(chan struct{}, 1))
	lock := value.(chan struct{})
	select {
	case lock <- struct{}{}:
		return func() { <-lock }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: another metalplug request uses the disk: %w", device.ErrInUse, ctx.Err())
	}
}

// probe asks metalplug-reset to inspect a disk. If no pod holds the disk, probe first locks the disk.
func (h *client) probe(ctx context.Context, t device.Target, held bool) (device.Report, error) {
	do := reset.Probe
	switch {
	case held:
		do = reset.Look
	case t.Offered:
		do = reset.Offer
	}
	if !held {
		unlock, err := h.lock(ctx, t.SysPath)
		if err != nil {
			return device.Report{}, fmt.Errorf("%w: another request for the device is in progress: %w", device.ErrUnanswered, ctx.Err())
		}
		defer unlock()
	}
	return h.sendRequest(ctx, request(ctx, do, t))
}

// survey asks metalplug-reset to read a disk. survey locks the disk, because askHolders would otherwise report the helper as a
// user of the disk.
func (h *client) survey(ctx context.Context, t device.Target, from int64) (device.Report, error) {
	unlock, err := h.lock(ctx, t.SysPath)
	if err != nil {
		return device.Report{}, err
	}
	defer unlock()
	r := request(ctx, reset.Survey, t)
	r.From = from
	return h.sendRequest(ctx, r)
}

func (h *client) prepare(ctx context.Context, t device.Target, w device.Work) (device.Report, error) {
	unlock, err := h.lock(ctx, t.SysPath)
	if err != nil {
		return device.Report{}, err
	}
	defer unlock()
	r := request(ctx, reset.Prepare, t)
	if r.Work = w; w.Blank {
		r.Fingerprint = reset.Blank
	}
	return h.sendRequest(ctx, r)
}

// sendRequest sends a request to metalplug-reset and returns the report from its answer.
func (h *client) sendRequest(ctx context.Context, r reset.Request) (device.Report, error) {
	a, err := h.reset.Do(ctx, r)
	if err != nil {
		return device.Report{}, fmt.Errorf("%w: %w", device.ErrUnanswered, err)
	}
	if meaning := meanings[a.Result]; meaning != nil {
		return a.Report, fmt.Errorf("%w: %s", meaning, a.Detail)
	}
	return a.Report, a.Err()
}

// meanings maps the results that metalplug-reset returns to errors about the device. Any result that is neither in this map nor
// [reset.OK] means that the work has failed.
var meanings = map[reset.Result]error{
	reset.Busy:        device.ErrInUse,
	reset.Foreign:     fmt.Errorf("%w: %w", turnover.ErrUnfit, device.ErrForeign),
	reset.Gone:        device.ErrGone,
	reset.Late:        device.ErrUnanswered,
	reset.Refused:     turnover.ErrUnfit,
	reset.Unsupported: turnover.ErrUnfit,
}
