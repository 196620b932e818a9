// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
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
		Args: cobra.NoArgs,
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
		err := o.redraw(ctx, changed, cmd, *output)
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
func (o *operator) redraw(ctx context.Context, changed <-chan struct{}, cmd *cobra.Command, output format) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		if err := o.draw(cmd, output); err != nil {
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
func (o *operator) draw(cmd *cobra.Command, output format) error {
	devices, resources, err := o.ask(cmd)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if output == "json" {
		return json.NewEncoder(out).Encode(devices)
	}
	s := newScreen(out)
	if isTerminal(out) {
		s.WriteString(clearScreen)
	}
	s.devices(devices, resources, false)
	if !isTerminal(out) {
		s.WriteString("\n")
	}
	_, err = s.WriteTo(out)
	return err
}
