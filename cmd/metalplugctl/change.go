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
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
)

// cordonCommand keeps a device from new pods. The daemon has the reason on disk before it answers, so that exit code 0
// means that the cordon outlives a power failure.
func (o *operator) cordonCommand() *cobra.Command {
	var c api.Change
	cmd := o.changeCommand(cobra.Command{
		Use:   "cordon NAME...",
		Short: "Keep devices from new pods, also across reboots",
		Args:  cobra.MinimumNArgs(1),
	}, &c, nil)
	cmd.Flags().StringVarP(&c.Reason, "reason", "r", api.Unexplained, "`TEXT` to show with them")
	cmd.Flags().Bool("wait", false, "wait until no pod holds the devices")
	return cmd
}

// awaitRelease waits until no pod holds the devices any more, also while the daemon is restarted. A daemon that has not looked at
// the hardware yet knows no device.
func (o *operator) awaitRelease(cmd *cobra.Command, held []string) error {
	ctx, c := cmd.Context(), o.client()
	err := o.follow(cmd, true, func([]byte, api.Event) error {
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
	return fmt.Errorf("wait for the pods that hold %s: %w", strings.Join(held, ", "), cmp.Or(err, ctx.Err()))
}

// errReleased ends the wait for pods that hold devices.
var errReleased = errors.New("released")

// uncordonCommand ends a cordon. A device that is not there any more can be uncordoned too, else its ID would be
// cordoned for good.
func (o *operator) uncordonCommand() *cobra.Command {
	return o.changeCommand(cobra.Command{
		Use:   "uncordon NAME...",
		Short: "Give cordoned devices to pods again",
		Args:  cobra.MinimumNArgs(1),
	}, &api.Change{}, nil)
}

// resetCommand resets a device or erases it. It asks twice before an erasure. On a terminal the operator types the ID, and a
// script has --yes. An erasure needs the name of a method, so that an operator who wants a reset does not erase.
func (o *operator) resetCommand() *cobra.Command {
	return o.erasingCommand(cobra.Command{
		Use:   "reset NAME",
		Short: "Reset a device now, or erase it",
	}, "erase it, by this method", false)
}

// adoptCommand lets a disk be erased and offered that metalplug has no evidence of. It asks twice, as a reset with --scrub
// does.
func (o *operator) adoptCommand() *cobra.Command {
	return o.erasingCommand(cobra.Command{
		Use:   "adopt NAME",
		Short: "Erase a disk and offer it",
	}, "erase by this method (default: its resource's)", true)
}

// erasingCommand completes a command that erases with a scrub, or that always does.
func (o *operator) erasingCommand(command cobra.Command, usageOfScrub string, always bool) *cobra.Command {
	var c api.Change
	var scrub *string
	var yes bool
	command.Args = cobra.ExactArgs(1)
	cmd := o.changeCommand(command, &c, func(cmd *cobra.Command, name string) (id string, err error) {
		c.Scrub = *scrub
		var d api.Device
		if err := o.client().Get(cmd.Context(), pathOf(name), &d); err != nil {
			return "", failed(cmd.Name(), name, err)
		}
		if always || c.Scrub != "" {
			err = mayErase(cmd, name, d, yes)
		}
		return d.ID, err
	})
	scrub = choiceFlag(cmd, "scrub", "", "METHOD", "", usageOfScrub, append(config.Scrubs(), "secure-discard")...)
	cmd.Flags().BoolVar(&yes, "yes", false, "erase without a question; needs the ID of the disk")
	return cmd
}

// changeCommand completes a command that has the daemon change devices, and shows how each stands then. It changes the device
// with the ID that may returns for a name, and none where that returns an error; a nil one leaves the name to the daemon. A device
// that is not changed does not keep the others.
func (o *operator) changeCommand(command cobra.Command, c *api.Change, may func(cmd *cobra.Command, name string) (id string, err error)) *cobra.Command {
	cmd := &command
	cmd.ValidArgsFunction = o.deviceIDs
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		c.Login = login(loginFile)
		var errs []error
		var held []string
		for _, name := range names {
			var d api.Changed
			err := error(nil)
			if may != nil {
				name, err = may(cmd, name)
			}
			if err == nil {
				err = failed(cmd.Name(), name, o.client().Post(cmd.Context(), pathOf(name)+"/"+cmd.Name(), *c, &d))
			}
			if err == nil {
				err = show(cmd.OutOrStdout(), *output, false, d, func(s *screen) { s.line("", "", changed(d)) })
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

// changed is a device after a change, on one line.
func changed(d api.Changed) string {
	text := d.ID + ": " + d.Health
	if d.Reason != "" {
		text += ": " + d.Reason
	}
	if d.Held {
		text += "; held by " + holder(d.Device)
	}
	if d.Note != "" {
		text += " (" + d.Note + ")"
	}
	return text
}

// mayErase shows which device is to be erased, and asks for its ID once more unless yes. Another name than the ID may be that of
// another disk after a reboot, so that a script has to give the ID.
func mayErase(cmd *cobra.Command, name string, d api.Device, yes bool) error {
	fmt.Fprintln(cmd.ErrOrStderr(), clean(described(d)))
	switch {
	case !yes:
		return confirm(cmd.InOrStdin(), cmd.ErrOrStderr(), d.ID)
	case name != d.ID:
		return failed(cmd.Name(), name, fmt.Errorf("with --yes, name the disk by its ID, %s: nothing was done", d.ID))
	}
	return nil
}

// wwid is how the name begins that the kernel gives a disk (nvme_wwid_show in drivers/nvme/host/sysfs.c, and VPD page 0x83 of SCSI).
var wwid = regexp.MustCompile(`^(eui|nvme|uuid|naa|t10)\.`)

// described is a disk as the operator who erases it should recognise it.
func described(d api.Device) string {
	text := d.ID + ": " + cmp.Or(d.Model, "a disk of unknown model")
	if d.Serial != "" {
		kind := "serial number"
		if wwid.MatchString(d.Serial) {
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

// loginFile is where the kernel keeps who has logged in, through su and sudo
// (Documentation/ABI/stable/procfs-audit_loginuid).
const loginFile = "/proc/self/loginuid"

// login names the user who has logged in here and may have become another since. It is empty if that is not known.
func login(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	u, err := user.LookupId(strings.TrimSpace(string(text))) // 4294967295 is no user
	if err != nil {
		return ""
	}
	return u.Username
}

// confirm has the ID typed once more.
func confirm(in io.Reader, out io.Writer, id string) error {
	fmt.Fprintf(out, "Everything on %s will be lost.\nType its ID once more to erase it: ", clean(id))
	line, err := bufio.NewReader(in).ReadString('\n')
	if strings.TrimSpace(line) == id {
		return nil
	}
	if err != nil {
		fmt.Fprintln(out)
	}
	return fmt.Errorf("erase %s: what was typed is not its ID: nothing was done", id)
}

// failed tells what was not done to which device. It returns nil for no error. The daemon names the device, too.
func failed(verb, id string, err error) error {
	if err == nil {
		return nil
	}
	if refused := new(api.Refused); errors.As(err, &refused) {
		refused.Text = strings.TrimPrefix(refused.Text, id+": ")
	}
	return fmt.Errorf("%s %s: %w", verb, id, err)
}

// pathOf returns the path of a device at the control socket. It escapes a name that would lead elsewhere in a path.
// The daemon says that it is not a device.
func pathOf(id string) string {
	escaped := url.PathEscape(id)
	if id == "." || id == ".." {
		escaped = strings.ReplaceAll(id, ".", "%2E")
	}
	return "/v1/devices/" + escaped
}
