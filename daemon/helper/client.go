// SPDX-License-Identifier: Apache-2.0

// Package helper is metalplugd's side of the helpers. It makes a request of the work on a device, and makes of the answer a
// value for the rest of the daemon. One request at a time is made for a device.
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
	// maxWorking is how many devices helpers work on at a time. metalplug-reset.socket takes as many connections.
	maxWorking = 64
	// maxAsking is how many questions about open devices are under way at a time. Each reads all processes. Beside them,
	// metalplug-holders.socket takes one connection of each metalplug-reset.
	maxAsking = 8
)

// client has the helpers as [device.Touch] has them.
type client struct {
	sysfs   sysfs.Tree
	reset   reset.Client
	holders cgroup.Client

	slots sync.Map // a chan struct{} by sysfs path, with one slot that is full while a helper works on the device

	mu   sync.Mutex
	next *question // that others may join, or nil
}

// Touch returns the requests to the helpers that touch devices. root is where sysfs is. The configuration was read from file,
// which a helper that is a child process reads too.
func Touch(c config.Reset, root, file string) device.Touch {
	peer := func(program, socket string, most int) exchange.Peer {
		return exchange.Peer{Program: program, Socket: socket, Config: file, Slots: make(chan struct{}, most)}
	}
	h := &client{
		sysfs:   sysfs.Tree{Sys: root},
		reset:   reset.Client{Peer: peer(reset.Program, c.Socket, maxWorking)},
		holders: cgroup.Client{Peer: peer(cgroup.Program, c.Holders, maxAsking)},
	}
	return device.Touch{Probe: h.probe, Survey: h.survey, Prepare: h.prepare, Holders: h.holding}
}

// Unit returns the request to the helper that runs the unit of a stage, see [turnover.Turnover].
func Unit(c config.Reset, file string) func(ctx context.Context, resource, stage, id string) error {
	return unit.Client{Peer: exchange.Peer{Program: unit.Program, Socket: c.Units, Config: file}}.Run
}

// request makes a request out of a target. Its time is that of ctx.
func request(ctx context.Context, do reset.Do, t device.Target) reset.Request {
	r := reset.Request{Do: do, SysPath: t.SysPath, Class: t.Class, Identity: t.Identity, TimeoutMS: time.Minute.Milliseconds()}
	if len(t.Pods) <= reset.MaxList { // else each pod counts
		r.Pods = t.Pods
	}
	if end, ok := ctx.Deadline(); ok {
		r.TimeoutMS = max((time.Until(end) - device.AnswerTime).Milliseconds(), 1)
	}
	return r
}

// claim waits until no helper works on a device. A disk that one helper holds to read it cannot be held by another to erase
// it.
func (h *client) claim(ctx context.Context, path string) (release func(), err error) {
	value, _ := h.slots.LoadOrStore(path, make(chan struct{}, 1))
	slot := value.(chan struct{})
	select {
	case slot <- struct{}{}:
		return func() { <-slot }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: by us: %w", device.ErrInUse, ctx.Err())
	}
}

// probe claims nothing of a disk that a pod holds.
func (h *client) probe(ctx context.Context, t device.Target, held bool) (device.Reading, error) {
	do := reset.Probe
	switch {
	case held:
		do = reset.Look
	case t.Offered:
		do = reset.Offer
	}
	r := request(ctx, do, t)
	if !held {
		release, err := h.claim(ctx, t.SysPath)
		if err != nil {
			return device.Reading{}, fmt.Errorf("%w: we are at work on it: %w", device.ErrUnanswered, ctx.Err())
		}
		defer release()
	}
	r.Fingerprint = t.Fingerprint // to read the same places, or the content could not be compared
	a, err := h.do(ctx, r)
	return device.Reading{Content: a.Content, Fingerprint: a.Fingerprint, Size: a.Size, Claimed: a.Claimed, Smart: a.Smart}, err
}

// survey claims the disk, so that it is not taken for a process that has it open.
func (h *client) survey(ctx context.Context, t device.Target, from int64) (device.Surveyed, error) {
	release, err := h.claim(ctx, t.SysPath)
	if err != nil {
		return device.Surveyed{}, err
	}
	defer release()
	r := request(ctx, reset.Survey, t)
	r.From = from
	a, err := h.do(ctx, r)
	return device.Surveyed{Read: a.Read, Size: a.Size, Content: a.Content}, err
}

func (h *client) prepare(ctx context.Context, t device.Target, w device.Work) (device.Prepared, error) {
	release, err := h.claim(ctx, t.SysPath)
	if err != nil {
		return device.Prepared{}, err
	}
	defer release()
	r := request(ctx, reset.Prepare, t)
	r.Resource, r.Method, r.Scrub, r.Tenant, r.ByHand, r.Together = w.Resource, w.Method, w.Scrub, w.Tenant, w.ByHand, t.Together
	r.Written = t.Written
	switch {
	case w.Blank:
		r.Fingerprint = reset.Blank
	case w.Tenant, w.ByHand:
		r.Fingerprint = t.Fingerprint
	}
	a, err := h.do(ctx, r)
	return device.Prepared{Done: a.Done, Erased: a.Erased, Appearance: a.Appearance, Size: a.Size}, err
}

// do asks the helper that touches devices.
func (h *client) do(ctx context.Context, r reset.Request) (reset.Answer, error) {
	a, err := h.reset.Do(ctx, r)
	if err != nil {
		return a, fmt.Errorf("%w: %w", device.ErrUnanswered, err)
	}
	if meaning := meanings[a.Result]; meaning != nil {
		return a, fmt.Errorf("%w: %s", meaning, a.Detail)
	}
	return a, a.Err()
}

// meanings are what results of the helper say of a device. The others say that the work has failed.
var meanings = map[reset.Result]error{
	reset.Busy:        device.ErrInUse,
	reset.Foreign:     fmt.Errorf("%w: %w", turnover.ErrUnfit, device.ErrForeign),
	reset.Gone:        device.ErrGone,
	reset.Late:        device.ErrUnanswered,
	reset.Refused:     turnover.ErrUnfit,
	reset.Unsupported: turnover.ErrUnfit,
}
