// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/api"
)

// eventsCommand prints each event immediately, so that a program at the other end of a pipe receives it without delay.
func (o *clientOptions) eventsCommand() *cobra.Command {
	cmd := newCommand("events")
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return o.follow(cmd, false, func(e api.Event) error {
			return show(cmd.OutOrStdout(), *output, true, e, func(s *screen) { s.writeEvent(e) })
		})
	}
	return cmd
}

// retryPause is the time between two attempts to reconnect to metalplugd.
const retryPause = 500 * time.Millisecond

// follow calls handle for each event, until the command ends or handle returns an error. If metalplugd stops after it has
// answered, follow prints a note and waits until metalplugd runs again, which causes the event "listening".
func (o *clientOptions) follow(cmd *cobra.Command, answered bool, handle func(api.Event) error) error {
	ctx, waiting := cmd.Context(), false
	for {
		err := o.stream(ctx, func(e api.Event) error {
			answered, waiting = true, false
			return handle(e)
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case !answered || !errors.Is(err, api.ErrNoAnswer):
			return err
		case !waiting:
			waiting = true
			fmt.Fprintf(cmd.ErrOrStderr(), "metalplugctl: %s; waiting for the daemon\n", cleanLines(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
}

// stream calls handle for each event, until metalplugd stops or handle returns an error. If metalplugd stops, the error is
// [api.ErrNoAnswer].
func (o *clientOptions) stream(ctx context.Context, handle func(api.Event) error) error {
	c := o.client()
	stream, err := c.Stream(ctx, "/v1/events")
	if err != nil {
		return err
	}
	defer stream.Close()
	for events := json.NewDecoder(stream); ; {
		var e api.Event
		err := events.Decode(&e)
		if _, broken := errors.AsType[*net.OpError](err); broken || err == io.EOF {
			return fmt.Errorf("%w: %s: metalplugd stopped, or disconnected a slow client", api.ErrNoAnswer, c.Socket)
		} else if err != nil || e.Event == "" {
			return fmt.Errorf("read the events of %s: %w: %s", c.Socket, cmp.Or(err, errors.New("the line is not an event")), api.OtherVersion)
		}
		if err := handle(e); err != nil {
			return err
		}
	}
}

// writeEvent prints an event on one line, unless the text is wider than the terminal.
func (s *screen) writeEvent(e api.Event) {
	var about []string
	switch {
	case e.Device != nil:
		about = append(about, nameOf(*e.Device))
		if e.Device.Resource != "" {
			about = append(about, "("+e.Device.Resource+")")
		}
		if by := holder(*e.Device); e.Event == "allocated" && by != "-" {
			about = append(about, "to "+by)
		}
		why := strings.TrimPrefix(cmp.Or(reasonOf(*e.Device), e.Device.Warning), e.Event+": ") // as in "cordoned: ticket 4711"
		if why != "" && why != e.Event && e.Event != "released" {
			about = append(about, "- "+why)
		}
	case e.Event == "refused":
		about = append(about, "the configuration; the previous one still applies:", e.Problem)
	case e.Event == "reloaded":
		about = append(about, "the configuration")
	default:
		about = append(about, e.Resource+e.Problem)
	}
	mark := fmt.Sprintf("%s  %-12s  ", e.Time.UTC().Format(api.TimeFormat), clean(e.Event))
	s.line(mark, eventColour(e.Event), strings.Join(about, " "))
}

// eventColour returns the colour of an event. Green means an improvement, red means a problem, and yellow means a change that the
// operator should notice.
func eventColour(event string) string {
	switch event {
	case "healthy", "back", "connected", "uncordoned", "reloaded":
		return green
	case "unhealthy", "gone", "disconnected", "refused":
		return red
	case "warning", "cordoned":
		return yellow
	}
	return ""
}
