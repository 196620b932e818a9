// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/user"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
)

// cordonCommand withholds devices from new pods. metalplugd writes the cordon to disk before it answers, so exit code 0 means
// that the cordon survives a power failure.
func (o *clientOptions) cordonCommand() *cobra.Command {
	var c api.Change
	cmd := o.changeCommand("cordon", &c, nil)
	cmd.Flags().StringVarP(&c.Reason, "reason", "r", api.Unexplained, "reason to show, a `TEXT`")
	cmd.Flags().Bool("wait", false, "wait until no pod holds the devices and no erasure runs")
	return cmd
}

// awaitRelease waits until no pod holds a device in the list "held", no erasure is running, and metalplugd has recorded what the
// pods left. The wait continues while metalplugd restarts, because a new metalplugd must inspect the hardware before it knows the
// holders.
func (o *clientOptions) awaitRelease(cmd *cobra.Command, held []string) error {
	ctx, c := cmd.Context(), o.client()
	err := o.follow(cmd, true, func(api.Event) error {
		var status api.Status
		if err := c.Get(ctx, "/v1/status", &status); err != nil || !status.Ready {
			return err
		}
		held = slices.DeleteFunc(held, func(id string) bool {
			var d api.Device
			err := c.Get(ctx, pathOf(id), &d)
			refused := new(api.Refused)
			return err == nil && !d.Held || errors.As(err, &refused) && refused.Code == api.NotFound
		})
		if len(held) == 0 {
			return errReleased
		}
		return nil
	})
	if errors.Is(err, errReleased) {
		return nil
	}
	return fmt.Errorf("wait for the release of %s: %w", strings.Join(held, ", "), cmp.Or(err, errors.New("interrupted")))
}

// errReleased ends the loop in awaitRelease when no pod holds the devices any more.
var errReleased = errors.New("released")

// uncordonCommand removes a cordon. The command also accepts the ID of an absent device, because no other command can remove its
// cordon.
func (o *clientOptions) uncordonCommand() *cobra.Command {
	return o.changeCommand("uncordon", &api.Change{}, nil)
}

// resetCommand resets or erases a device. To confirm an erasure, an operator at a terminal must type the device ID, and a script
// must pass --yes. Without the flag --scrub, the command erases nothing, so that a mistake cannot destroy data.
func (o *clientOptions) resetCommand() *cobra.Command {
	return o.erasingCommand("reset", "erase the device with this `METHOD`", false)
}

// adoptCommand lets metalplug erase and offer a disk that is not proven to be empty. Like reset --scrub, the command asks the
// operator to confirm by typing the device ID.
func (o *clientOptions) adoptCommand() *cobra.Command {
	return o.erasingCommand("adopt", "erase with this `METHOD` (default: the resource's)", true)
}

// erasingCommand adds the code and the flags to a command that can erase a disk. If the parameter "always" is false, the command
// erases the disk only with the flag --scrub.
func (o *clientOptions) erasingCommand(command, usageOfScrub string, always bool) *cobra.Command {
	var c api.Change
	var scrub *string
	var yes bool
	cmd := o.changeCommand(command, &c, func(cmd *cobra.Command, name string) (id string, err error) {
		c.Scrub = *scrub
		var d api.Device
		if err := o.client().Get(cmd.Context(), pathOf(name), &d); err != nil {
			return "", wrapError(cmd.Name(), name, err)
		}
		if always || c.Scrub != "" {
			err = o.mayErase(cmd, name, d, c, yes)
		}
		return d.ID, err
	})
	scrub = choiceFlag(cmd, "scrub", "", "", usageOfScrub, append(config.Scrubs(), "secure-discard")...)
	cmd.Flags().BoolVar(&yes, "yes", false, "erase without confirmation; NAME must be the ID")
	return cmd
}

// changeCommand adds the code and the flags to a command that changes devices and shows their new states. The parameter "may" is
// a function that returns the ID of a named device, or an error if the command must not change the device. If "may" is nil,
// metalplugd resolves the name. If one device cannot be changed, the command continues with the next device. If metalplugd does
// not answer, the command stops.
func (o *clientOptions) changeCommand(command string, c *api.Change, may func(cmd *cobra.Command, name string) (id string, err error)) *cobra.Command {
	cmd := newCommand(command)
	cmd.ValidArgsFunction = o.deviceIDs
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		c.Login = login(loginFile)
		var errs []error
		var held []string
		for _, name := range names {
			var d api.ChangedDevice
			err := error(nil)
			if may != nil {
				name, err = may(cmd, name)
			}
			if err == nil {
				err = wrapError(cmd.Name(), name, o.client().Post(cmd.Context(), pathOf(name)+"/"+cmd.Name(), *c, &d))
			}
			if err == nil {
				err = show(cmd.OutOrStdout(), *output, false, d, func(s *screen) { s.line("", "", describeChange(d)) })
			}
			if errors.Is(err, api.ErrNoAnswer) {
				return err
			}
			if errs = append(errs, err); d.Held {
				held = append(held, d.ID)
			}
		}
		if wait, _ := cmd.Flags().GetBool("wait"); wait && len(held) > 0 {
			errs = append(errs, o.awaitRelease(cmd, held))
		}
		return errors.Join(errs...)
	}
	return cmd
}

// describeChange returns one line of text about a device and its new state.
func describeChange(d api.ChangedDevice) string {
	state := healthCell(d.Device).text
	text := d.ID + ": " + state
	if d.Reason != "" {
		text += ": " + strings.TrimPrefix(d.Reason, strings.ToLower(state)+": ")
	}
	if d.Held {
		text += "; held by " + holder(d.Device)
	}
	if d.Note != "" {
		text += " (" + d.Note + ")"
	}
	return text
}

// mayErase shows the device to erase, and asks the operator to type the device ID. If the parameter "yes" is true, the name must
// itself be the ID, because any other name may belong to another disk after a reboot. mayErase does not ask if metalplugd would
// refuse the erasure, or if there is nothing to erase.
func (o *clientOptions) mayErase(cmd *cobra.Command, name string, d api.Device, c api.Change, yes bool) error {
	if yes && name != d.ID {
		return wrapError(cmd.Name(), name, fmt.Errorf("nothing was erased; with --yes, NAME must be the device ID: %s", d.ID))
	}
	c.DryRun = true
	var answer api.ChangedDevice
	err := o.client().Post(cmd.Context(), pathOf(d.ID)+"/"+cmd.Name(), c, &answer)
	if err != nil || answer.Note != "" {
		return wrapError(cmd.Name(), name, err)
	}
	fmt.Fprintln(cmd.ErrOrStderr(), clean(describeDisk(d)))
	if yes {
		return nil
	}
	return confirm(cmd.InOrStdin(), cmd.ErrOrStderr(), d.ID)
}

// describeDisk returns a description by which the operator can recognise a disk.
func describeDisk(d api.Device) string {
	text := d.ID + ": " + cmp.Or(d.Model, "a disk of unknown model")
	if d.Serial != "" {
		kind := "serial number"
		if d.Serial == d.WWID {
			kind = "WWID"
		}
		text += ", " + kind + " " + d.Serial
	}
	if d.Size > 0 {
		text += fmt.Sprintf(", %.1f GB", float64(d.Size)/1e9)
	}
	if d.Reason != "" {
		text += ": " + d.Reason
	}
	return text
}

// loginFile contains the uid of the user who logged in. The commands su and sudo do not change this uid
// (Documentation/ABI/stable/procfs-audit_loginuid).
const loginFile = "/proc/self/loginuid"

// login returns the name of the user who logged in, even after su or sudo. The name is empty if the user is unknown.
func login(file string) string {
	text, _ := os.ReadFile(file)
	u, err := user.LookupId(strings.TrimSpace(string(text))) // the uid 4294967295 means that no user has logged in
	if err != nil {
		return ""
	}
	return u.Username
}

// confirm asks the operator to type the device ID, and returns an error for any other input.
func confirm(in io.Reader, out io.Writer, id string) error {
	fmt.Fprintf(out, "Everything on %s will be lost.\nType its ID to erase it: ", clean(id))
	line, err := bufio.NewReader(in).ReadString('\n')
	if strings.TrimSpace(line) == id {
		return nil
	}
	if err != nil {
		fmt.Fprintln(out)
	}
	return fmt.Errorf("erase %s: the typed ID does not match, so nothing was erased", id)
}

// wrapError adds the action and the device to err. If err is nil, the result is nil.
func wrapError(verb, id string, err error) error {
	if err == nil {
		return nil
	}
	if refused := new(api.Refused); errors.As(err, &refused) {
		refused.Text = strings.TrimPrefix(refused.Text, id+": ")
	}
	return fmt.Errorf("%s %s: %w", verb, id, err)
}

// pathOf returns the path for a device in requests to the control socket. pathOf escapes the names "." and "..", because a server
// would otherwise remove them from the path.
func pathOf(id string) string {
	escaped := url.PathEscape(id)
	if id == "." || id == ".." {
		escaped = strings.ReplaceAll(id, ".", "%2E")
	}
	return "/v1/devices/" + escaped
}
