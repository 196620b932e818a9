// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	"github.com/coreos/go-systemd/v22/unit"
)

const (
	// jobLook is how often Run checks that systemd still runs while it waits for a job. A daemon-reexec drops the
	// connection, and so the signal for the end of the job.
	jobLook = time.Second
	// stopLimit is the maximum time to stop a unit that has timed out.
	stopLimit = 2 * time.Second
	// askLimit is the maximum time for a request on which a caller waits.
	askLimit = 5 * time.Second
	// replace is the job mode that replaces a queued job of the same unit.
	replace = "replace"
)

// Units queries and runs units of systemd over D-Bus. As root it uses the private socket of systemctl, which needs no
// bus daemon. Otherwise it uses the system bus. The zero value is ready. Its methods are safe for concurrent use.
type Units struct {
	dial func(ctx context.Context) (*dbus.Conn, error) // nil for this machine's systemd
}

// Booted reports whether this machine runs systemd (sd_booted(3)).
func Booted() bool {
	info, err := os.Lstat("/run/systemd/system")
	return err == nil && info.IsDir()
}

// UnitName returns the unit of a template "name@.service" for an instance, which it escapes as systemd-escape(1) does.
func UnitName(template, instance string) string {
	before, after, _ := strings.Cut(template, "@")
	return before + "@" + unit.UnitNameEscape(instance) + after
}

func (u Units) connect(ctx context.Context) (*dbus.Conn, error) {
	if u.dial != nil {
		return u.dial(ctx)
	}
	c, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		bus, busErr := dbus.NewSystemConnectionContext(ctx)
		return bus, errors.Join(err, busErr)
	}
	return c, nil
}

// Run runs the unit of a template for an instance. If the unit is still active, Run stops it first, so that its
// commands are always executed. It blocks until the unit is active or has ended, depending on its Type=. A oneshot ends
// when all its commands have succeeded. The error contains systemd's result. If the deadline of ctx passes, Run stops
// the unit. If ctx is cancelled, the unit continues.
func (u Units) Run(ctx context.Context, template, instance string) error {
	name := UnitName(template, instance)
	if err := u.run(ctx, name); err != nil {
		return fmt.Errorf("run %s: %w", name, err)
	}
	return nil
}

func (u Units) run(ctx context.Context, name string) error {
	c, err := u.connect(ctx)
	if err != nil {
		return fmt.Errorf("connect to systemd: %w", err)
	}
	defer c.Close()
	// The start limit (StartLimitBurst=) protects against crash loops, but here each start was requested. An error means
	// that the unit is not loaded, and so has no failed state to reset.
	_ = c.ResetFailedUnitContext(ctx, name)
	over := make(chan string, 1)
	result := ""
	if _, err = c.RestartUnitContext(ctx, name, replace, over); err == nil {
		result, err = await(ctx, c, over)
	}
	switch {
	case err == nil && result == "done": // this is also the result if a condition of the unit is false; the unit then has nothing to do
		return nil
	case err == nil:
		return fmt.Errorf("%s; see: journalctl -u '%s'", failure(ctx, c, name, result), name)
	case errors.Is(err, context.DeadlineExceeded): // systemd may have started the unit even if the request did not return in time
		stopping, cancel := context.WithTimeout(context.Background(), stopLimit)
		defer cancel()
		_, _ = c.StopUnitContext(stopping, name, replace, nil) // if the unit cannot be stopped, the next run replaces it
	}
	return err
}

// await waits for the end of a job and returns its result (org.freedesktop.systemd1(5), JobRemoved).
func await(ctx context.Context, c *dbus.Conn, over <-chan string) (result string, err error) {
	tick := time.NewTicker(jobLook)
	defer tick.Stop()
	for {
		select {
		case result = <-over:
			return result, nil
		case <-ctx.Done():
			return "", fmt.Errorf("it did not end in time: %w", ctx.Err())
		case <-tick.C:
			if !c.Connected() {
				return "", errors.New("systemd has closed the connection")
			}
		}
	}
}

// failure returns systemd's reason why a unit could not be started.
func failure(ctx context.Context, c *dbus.Conn, name, result string) string {
	text := "the start job ended as " + result
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
	if said, _ := properties["StatusText"].(string); said != "" {
		text += ": " + said
	}
	return text
}

// Unusable is a template that systemd cannot run.
type Unusable struct {
	Template string
	Masked   bool // true if the unit is masked, false if it has no unit file
}

// String describes the problem.
func (u Unusable) String() string {
	return fmt.Sprintf("the unit %s is %s on this machine", u.Template, map[bool]string{false: "missing", true: "masked"}[u.Masked])
}

// Complaints returns warnings about templates that will be run. It warns if systemd does not know a template or cannot
// be queried. It returns none if systemd does not run. It blocks for a few seconds at most.
func (u Units) Complaints(ctx context.Context, templates ...string) []string {
	if u.dial == nil && !Booted() {
		return nil
	}
	unusable, err := u.Unusable(ctx, templates...)
	if err != nil {
		return []string{fmt.Sprintf("find %s: %v", strings.Join(templates, ", "), err)}
	}
	var texts []string
	for _, of := range unusable {
		texts = append(texts, of.String())
	}
	return texts
}

// Unusable returns the templates whose unit file is missing or masked. It blocks until systemd answers, for a few
// seconds at most.
func (u Units) Unusable(ctx context.Context, templates ...string) ([]Unusable, error) {
	if len(templates) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	c, err := u.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to systemd: %w", err)
	}
	defer c.Close()
	files, err := c.ListUnitFilesByPatternsContext(ctx, nil, templates)
	if err != nil {
		return nil, fmt.Errorf("list unit files: %w", err)
	}
	var unusable []Unusable
	for _, template := range templates {
		n := slices.IndexFunc(files, func(f dbus.UnitFile) bool {
			return f.Path[strings.LastIndexByte(f.Path, '/')+1:] == template
		})
		if n < 0 || strings.HasPrefix(files[n].Type, "masked") {
			unusable = append(unusable, Unusable{Template: template, Masked: n >= 0})
		}
	}
	return unusable, nil
}
