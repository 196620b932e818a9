// SPDX-License-Identifier: Apache-2.0

// Package unit lets metalplugd run a vendor unit. The package contains metalplugd's request and the helper that answers it.
//
// A request names a resource, a stage and a device, but never a unit. The helper reads the unit's name from the configuration.
// Therefore, a request can start only units that the operator has configured.
package unit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
)

// Program is the helper's name.
const Program = "metalplug-unit"

// MaxTimeout is the maximum timeout that a request may set for a unit. systemd stops metalplug-unit@.service shortly after this
// time.
const MaxTimeout = time.Hour

// A unit can run at these stages, which are also the keys in [resource.units].
const (
	Init    = "init"
	Start   = "start"
	Release = "release"
)

// Request is a request to run a unit configured for a resource.
type Request struct {
	Resource string `json:"resource"`
	Stage    string `json:"stage"`
	Device   string `json:"device"`
	// TimeoutMS is how long the unit may run, in milliseconds, before the helper stops it.
	TimeoutMS int64 `json:"timeout_ms"`
}

// answer is the reply to a request.
type answer struct {
	Error string `json:"error,omitempty"` // "" if the unit succeeded
}

// Client sends requests to the helper. The method is safe for concurrent use.
type Client struct {
	Peer exchange.Peer
}

// Run asks the helper to start the unit configured for a resource and a stage. The unit gets the device ID. Run blocks until the
// unit has succeeded or failed. If the deadline of ctx passes, the helper stops the unit. If ctx is cancelled, the unit keeps
// running.
func (c Client) Run(ctx context.Context, resource, stage, id string) error {
	r := Request{Resource: resource, Stage: stage, Device: id, TimeoutMS: MaxTimeout.Milliseconds()}
	asking, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if end, ok := ctx.Deadline(); ok {
		r.TimeoutMS = min(max(time.Until(end).Milliseconds(), 1), r.TimeoutMS)
		// The helper stops the unit at the deadline, and then needs time to answer.
		asking, cancel = context.WithDeadline(asking, end.Add(device.AnswerTime))
		defer cancel()
	}
	defer context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			cancel()
		}
	})()
	a, err := exchange.Call[answer](asking, c.Peer, func() []byte { return exchange.Encode(r) })
	if err != nil {
		return err
	}
	if a.Error != "" {
		return errors.New(a.Error)
	}
	return nil
}

// check returns an error if a request is invalid. The function does not check the resource or the stage, because the helper
// accepts only those in the configuration.
func (r Request) check() error {
	switch {
	case r.Device == "" || device.MakeID(r.Device) != r.Device: // a vendor unit may pass the ID to a shell
		return fmt.Errorf("invalid device %q: not a metalplug device ID", r.Device)
	case r.TimeoutMS < 1 || r.TimeoutMS > MaxTimeout.Milliseconds():
		return fmt.Errorf("invalid timeout_ms %d: must be 1 to %d", r.TimeoutMS, MaxTimeout.Milliseconds())
	}
	return nil
}

// Helper answers requests from a [Client].
type Helper struct {
	File string // main configuration file
	// Run starts an instance of a template unit, as [units.Run] does.
	Run func(ctx context.Context, template, instance string) error
}

// maxError is the maximum length of an error in bytes. JSON may need six bytes for one byte of the error.
const maxError = exchange.MessageSize / 8

// Serve answers one request from standard input. Serve blocks until the unit has succeeded or failed.
func (h Helper) Serve() error { return exchange.Serve(h.reply) }

func (h Helper) reply(_ context.Context, _ int, request []byte) []byte {
	var a answer
	if err := h.handle(request); err != nil {
		a.Error = err.Error()
		a.Error = a.Error[:min(len(a.Error), maxError)]
	}
	return exchange.Encode(a)
}

// handle carries out a request if the configuration names a unit for it.
func (h Helper) handle(request []byte) error {
	r, err := exchange.Decode[Request](request)
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return fmt.Errorf("refuse the request: %w", err)
	}
	template, err := h.template(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.TimeoutMS)*time.Millisecond)
	defer cancel()
	return h.Run(ctx, template, r.Device)
}

// template returns the template unit that the configuration names for a request.
func (h Helper) template(r Request) (string, error) {
	c, err := config.Load(h.File)
	if err != nil {
		return "", fmt.Errorf("read the configuration: %w", err)
	}
	resource, _ := c.Resource(r.Resource)
	template := map[string]string{Init: resource.Units.Init, Start: resource.Units.Start, Release: resource.Units.Release}[r.Stage]
	if template != "" {
		return template, nil
	}
	return "", fmt.Errorf("refuse the request: %s does not set units.%s for %s; systemctl reload metalplugd", h.File, r.Stage, r.Resource)
}
