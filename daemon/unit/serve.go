// SPDX-License-Identifier: Apache-2.0

package unit

import (
	"context"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/exchange"
)

// Helper answers the requests from a [Client].
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
