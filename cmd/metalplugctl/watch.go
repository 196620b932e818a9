// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/control"
)

const (
	// redrawPause is the least time between two drawings: nobody reads faster, and a burst of events is one change.
	redrawPause = 100 * time.Millisecond
	// clearScreen moves a terminal's cursor to the top and erases everything below (ECMA-48 CUP and ED).
	clearScreen = "\x1b[H\x1b[J"
)

// watchCommand redraws the list at each change. It follows the events only to know when: what is drawn is asked for
// anew, so that nothing that was missed is missing.
func (o *operator) watchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show the list of devices live",
		Long: `Show the list of devices, redrawn at each change, until it is interrupted. Where the output is no terminal, each state
follows the last one; with -o json it is an array of devices on one line.`,
		Args: noArgs,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithCancelCause(cmd.Context())
		defer cancel(nil)
		changed := make(chan struct{}, 1)
		go func() {
			cancel(o.follow(ctx, func([]byte, control.Event) error {
				select {
				case changed <- struct{}{}:
				default: // one drawing shows both
				}
				return nil
			}))
		}()
		err := o.redraw(ctx, changed, cmd.OutOrStdout(), *output)
		if cmd.Context().Err() != nil {
			return nil
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		return err
	}
	return cmd
}

// redraw draws after each change, until ctx ends.
func (o *operator) redraw(ctx context.Context, changed <-chan struct{}, out io.Writer, output format) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		if err := o.draw(ctx, out, output); err != nil {
			return ended(ctx, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(redrawPause):
		}
	}
}

// draw asks for the list and shows it once.
func (o *operator) draw(ctx context.Context, out io.Writer, output format) error {
	var devices []control.Device
	var resources []control.Resource
	c := o.client()
	if err := c.Get(ctx, "/v1/devices", &devices); err != nil {
		return err
	}
	if output == "json" {
		return json.NewEncoder(out).Encode(devices)
	}
	if err := c.Get(ctx, "/v1/resources", &resources); err != nil {
		return err
	}
	s := newScreen(out)
	s.devices(resources, devices, false)
	text := s.String()
	if isTerminal(out) {
		text = clearScreen + text
	} else {
		text += "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}
