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
	// jobLook is how often Run checks that systemd is still there while a job of it runs. A daemon-reexec drops the
	// connection, and with it the signal that ends the job.
	jobLook = time.Second
	// stopLimit bounds the request to stop a unit whose time is up.
	stopLimit = 2 * time.Second
	// askLimit bounds a question for which a caller waits.
	askLimit = 5 * time.Second
	// replace is the job mode by which a job takes the place of one that is queued for the same unit.
	replace = "replace"
)

// Units asks systemd about units and lets it run them, by D-Bus. As root it uses the socket of systemctl, which is there
// without a bus daemon, and otherwise the system bus. The zero value is ready. Its methods are safe for concurrent use.
type Units struct {
	dial func(ctx context.Context) (*dbus.Conn, error) // nil for this machine's systemd
}

// Booted reports whether this machine runs systemd (sd_booted(3)).
func Booted() bool {
	info, err := os.Lstat("/run/systemd/system")
	return err == nil && info.IsDir()
}

// UnitName returns the unit of a template "name@.service" for an instance, which is escaped as systemd-escape(1) does.
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

// Run runs the unit of a template for an instance. It stops one that is active still, so that its steps are always
// carried out. It blocks until the unit is active or has ended as its Type= demands, which for a oneshot is until all its
// commands have succeeded. The error has systemd's own result. When the time of ctx is up, Run stops the unit. When ctx
// is only cancelled, the unit goes on.
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
	// The limit of starts within a time (StartLimitBurst=) is about crash loops, and here each start is asked for. An
	// error means that the unit is not loaded, so that there is nothing to reset.
	_ = c.ResetFailedUnitContext(ctx, name)
	over := make(chan string, 1)
	result := ""
	if _, err = c.RestartUnitContext(ctx, name, replace, over); err == nil {
		result, err = await(ctx, c, over)
	}
	switch {
	case err == nil && result == "done": // also if a condition of the unit does not hold, in which case nothing is to be done
		return nil
	case err == nil:
		return fmt.Errorf("%s; see: journalctl -u '%s'", failure(ctx, c, name, result), name)
	case errors.Is(err, context.DeadlineExceeded): // also while systemd was asked, which may have started it
		stopping, cancel := context.WithTimeout(context.Background(), stopLimit)
		defer cancel()
		_, _ = c.StopUnitContext(stopping, name, replace, nil) // if it cannot be stopped, it is replaced when it is run again
	}
	return err
}

// await waits until a job is over and returns its result (org.freedesktop.systemd1(5), JobRemoved).
func await(ctx context.Context, c *dbus.Conn, over <-chan string) (result string, err error) {
	tick := time.NewTicker(jobLook)
	defer tick.Stop()
	for {
		select {
		case result = <-over:
			return result, nil
		case <-ctx.Done():
			return "", fmt.Errorf("it has not ended in time: %w", ctx.Err())
		case <-tick.C:
			if !c.Connected() {
				return "", errors.New("systemd has closed the connection")
			}
		}
	}
}

// failure returns why a unit could not be started, as far as systemd knows.
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
	Masked   bool // else there is no unit file
}

// String says so.
func (u Unusable) String() string {
	return fmt.Sprintf("the unit %s is %s on this machine", u.Template, map[bool]string{false: "missing", true: "masked"}[u.Masked])
}

// Complaints returns warnings about templates that are to be run, for people. systemd does not know a template, or cannot
// be asked. There are none where no systemd runs. It blocks for some seconds at most.
func (u Units) Complaints(ctx context.Context, templates ...string) []string {
	if u.dial == nil && !Booted() {
		return nil
	}
	unusable, err := u.Unusable(ctx, templates...)
	if err != nil {
		return []string{fmt.Sprintf("whether there is %s cannot be told: %v", strings.Join(templates, ", "), err)}
	}
	var texts []string
	for _, of := range unusable {
		texts = append(texts, of.String())
	}
	return texts
}

// Unusable returns those of the templates that systemd has no unit file for, or only a masked one. It blocks until systemd has
// answered, for some seconds at most.
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
