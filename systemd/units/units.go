// SPDX-License-Identifier: Apache-2.0

// Package units runs systemd units. metalplugd does not import this package, because the package adds a D-Bus client to the program.
package units

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	"github.com/coreos/go-systemd/v22/unit"
)

const (
	// jobPollInterval is the time between two checks of the connection to systemd while Run waits for a job. A daemon-reexec
	// drops the connection, so the signal that reports the end of the job may be lost.
	jobPollInterval = time.Second
	// stopLimit is the maximum time for the request that stops a unit. Run sends this request after ctx's deadline.
	stopLimit = 2 * time.Second
	// replace is the job mode that lets a job replace a queued job for the same unit.
	replace = "replace"
)

// connect connects to systemd over D-Bus. As root, connect uses systemd's private socket, which needs no bus daemon. As another
// user, connect uses the system bus.
func connect(ctx context.Context) (*dbus.Conn, error) {
	c, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		bus, busErr := dbus.NewSystemConnectionContext(ctx)
		return bus, errors.Join(err, busErr)
	}
	return c, nil
}

// Run starts an instance of a template unit such as "name@.service". Run escapes the instance as systemd-escape(1) does. If the
// unit is still active, Run stops it first, so that the unit's commands are always executed. Run blocks until the unit is active
// or has ended, depending on Type=. A oneshot unit ends when all its commands have succeeded. If the unit fails, the error
// contains systemd's result for the job. If the deadline of ctx passes, Run stops the unit. If ctx is cancelled, the unit keeps
// running.
func Run(ctx context.Context, template, instance string) error {
	c, err := connect(ctx)
	if err != nil {
		return fmt.Errorf("connect to systemd: %w", err)
	}
	defer c.Close()
	return run(ctx, c, template, instance)
}

// run does the work of Run over an open connection.
func run(ctx context.Context, c *dbus.Conn, template, instance string) error {
	before, after, _ := strings.Cut(template, "@")
	name := before + "@" + unit.UnitNameEscape(instance) + after
	// The start limit (StartLimitBurst=) protects against crash loops. The limit must not apply here, because each start is a
	// separate request. An error means that the unit is not loaded, so it has no failed state to reset.
	_ = c.ResetFailedUnitContext(ctx, name)
	over := make(chan string, 1)
	result := ""
	_, err := c.RestartUnitContext(ctx, name, replace, over)
	if err == nil {
		result, err = await(ctx, c, over)
	}
	switch {
	// The result is also "done" if one of the unit's conditions is false, because the unit then has nothing to do.
	case err == nil && result == "done":
		return nil
	case err == nil:
		err = fmt.Errorf("%s; see: journalctl -u '%s'", failure(ctx, c, name, result), name)
	// systemd may have started the unit even if the request did not return in time.
	case errors.Is(err, context.DeadlineExceeded):
		stopping, cancel := context.WithTimeout(context.Background(), stopLimit)
		defer cancel()
		// If this request fails, the next call to Run replaces the job.
		_, _ = c.StopUnitContext(stopping, name, replace, nil)
	}
	return fmt.Errorf("run %s: %w", name, err)
}

// await waits until a systemd job ends, and returns its result (org.freedesktop.systemd1(5), JobRemoved).
func await(ctx context.Context, c *dbus.Conn, over <-chan string) (result string, err error) {
	tick := time.NewTicker(jobPollInterval)
	defer tick.Stop()
	for {
		select {
		case result = <-over:
			return result, nil
		case <-ctx.Done():
			return "", fmt.Errorf("the unit did not end in time: %w", ctx.Err())
		case <-tick.C:
			if !c.Connected() {
				return "", errors.New("systemd has closed the connection")
			}
		}
	}
}

// failure describes why systemd could not start a unit.
func failure(ctx context.Context, c *dbus.Conn, name, result string) string {
	text := "the start job ended with the result " + result
	properties, err := c.GetUnitTypePropertiesContext(ctx, name, "Service")
	if err != nil {
		return text
	}
	if ended, _ := properties["Result"].(string); ended != "" && ended != "success" {
		text = "failed: " + ended
	}
	if status, _ := properties["ExecMainStatus"].(int32); status != 0 {
		text += fmt.Sprintf(", status %d", status)
	}
	if line, _ := properties["StatusText"].(string); line != "" {
		text += ": " + line
	}
	return text
}
