// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// cordonCommand keeps a device from new pods. The daemon has the reason on disk before it answers, so that exit code 0
// means that the cordon outlives a power failure.
func (o *operator) cordonCommand() *cobra.Command {
	var c control.Change
	cmd := o.changeCommand(cobra.Command{
		Use:   "cordon NAME...",
		Short: "Keep devices from new pods, also across reboots",
		Long: `Keep devices from new pods, also across restarts and reboots, until they are uncordoned. The kubelet sees a cordoned device
as Unhealthy. A pod that holds it keeps it, and the answer names the pod. A device is named as for "why": by its ID, a node,
a PCI address and so on. A device that is cordoned already keeps its reason unless a new one is given. Requires root.`,
		Example: `  metalplugctl cordon nvme-eui.36344830545001230025384300000001 --reason "worn out, ticket 4711"
  metalplugctl cordon 3b:00.0 5e:00.0 --wait`,
		Args: cobra.MinimumNArgs(1),
	}, &c, nil)
	cmd.Flags().StringVarP(&c.Reason, "reason", "r", inventory.Unexplained, "why the devices are cordoned")
	cmd.Flags().Bool("wait", false, "wait until no pod holds the devices any more")
	return cmd
}

// awaitRelease waits until no pod holds the devices any more.
func (o *operator) awaitRelease(ctx context.Context, held []string) error {
	err := o.follow(ctx, func(_ []byte, e control.Event) error {
		if e.Device == nil && e.Event != "listening" || e.Device != nil && !slices.Contains(held, e.Device.ID) {
			return nil
		}
		held = slices.DeleteFunc(held, func(id string) bool {
			var d control.Device
			err := o.client().Get(ctx, pathOf(id), &d)
			refused := new(control.Refused)
			return err == nil && !d.Held || errors.As(err, &refused) && refused.Code == http.StatusNotFound
		})
		if len(held) == 0 {
			return errReleased
		}
		return nil
	})
	switch {
	case errors.Is(err, errReleased):
		return nil
	case err == nil:
		err = ctx.Err()
	}
	return fmt.Errorf("wait for the pods that hold %s: %w", strings.Join(held, ", "), err)
}

// errReleased ends the wait for pods that hold devices.
var errReleased = errors.New("released")

// uncordonCommand ends a cordon. A device that is not there any more can be uncordoned too, else its ID would be
// cordoned for good.
func (o *operator) uncordonCommand() *cobra.Command {
	return o.changeCommand(cobra.Command{
		Use:   "uncordon NAME...",
		Short: "Give cordoned devices to pods again",
		Long:  `Give cordoned devices to pods again. A device is named as for "why". Requires root.`,
		Args:  cobra.MinimumNArgs(1),
	}, &control.Change{}, nil)
}

// resetCommand resets a device or erases it. It asks twice before an erasure. On a terminal the operator types the ID, and a
// script has --yes. An erasure needs the name of a method, so that an operator who wants a reset does not erase.
func (o *operator) resetCommand() *cobra.Command {
	return o.erasingCommand(cobra.Command{
		Use:   "reset ID",
		Short: "Reset a device now, or erase it",
		Long: `Reset a device now, by the method of its resource or of its class. With --scrub it is erased instead: everything on it
is lost, and its ID has to be typed once more unless --yes is given. A device that a pod holds, that somebody has open or that
this host uses is left alone. Needs uid 0.`,
		Example: `  metalplugctl reset nvme-eui.36344830545001230025384300000001
  metalplugctl reset nvme-eui.36344830545001230025384300000001 --scrub discard`,
	}, "erase it, by this `METHOD`: %s", false)
}

// adoptCommand lets a disk be erased and offered that metalplug has no evidence of. It asks twice, as a reset with --scrub
// does.
func (o *operator) adoptCommand() *cobra.Command {
	return o.erasingCommand(cobra.Command{
		Use:   "adopt ID",
		Short: "Erase a disk, whatever is on it, and offer it",
		Long: `Erase a disk, whatever is on it, and offer it to pods from then on. Everything on the disk is lost. The command shows
which disk it is and what is on it, and the ID has to be typed once more unless --yes is given.

metalplug offers a disk only if it has read all of it and found it blank, or has erased it. A disk with other data stays
unproven until its operator adopts it. The disk is erased by the scrub of its resource, or by "zero" if that is "none".
The daemon saves the adoption before it answers, and erases after that, also after a restart. A disk that is plugged in
again, mounted or written before it is erased has to be adopted again.

A disk that a pod holds, that a process has open, that this host uses or that has no wwid or serial number is left alone.
Requires root.`,
		Example: `  metalplugctl adopt nvme-eui.36344830545001230025384300000001
  metalplugctl adopt nvme-eui.36344830545001230025384300000001 --scrub zero --yes`,
	}, "erase it by this `METHOD`: %s (default: that of its resource)", true)
}

// erasingCommand completes a command that erases with a scrub, or that always does.
func (o *operator) erasingCommand(command cobra.Command, usageOfScrub string, always bool) *cobra.Command {
	var c control.Change
	var yes bool
	command.Args = cobra.ExactArgs(1)
	cmd := o.changeCommand(command, &c, func(cmd *cobra.Command, id string) error {
		if c.Scrub != "" {
			if err := control.CheckScrub(c.Scrub); err != nil {
				return usage("--scrub: %w", err)
			}
		} else if !always {
			return nil
		}
		return o.mayErase(cmd, id, yes)
	})
	cmd.Flags().StringVar(&c.Scrub, "scrub", "", fmt.Sprintf(usageOfScrub, "discard, secure-discard, zero, format, crypto-erase or sanitize"))
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before it is erased")
	return cmd
}

// changeCommand completes a command that has the daemon change devices, and shows how each stands then. It does not change one
// where may, which can be nil, returns an error. A device that is not changed does not keep the others.
func (o *operator) changeCommand(command cobra.Command, c *control.Change, may func(cmd *cobra.Command, name string) error) *cobra.Command {
	cmd := &command
	cmd.ValidArgsFunction = o.deviceIDs
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		c.Login = login(loginFile)
		var errs []error
		var held []string
		for _, name := range names {
			var d control.Changed
			err := error(nil)
			if may != nil {
				err = may(cmd, name)
			}
			if err == nil {
				err = failed(cmd.Name(), name, o.client().Post(cmd.Context(), pathOf(name)+"/"+cmd.Name(), *c, &d))
			}
			if err == nil {
				err = show(cmd.OutOrStdout(), *output, false, d, func(s *screen) { s.line("", "", changed(d)) })
			}
			if errors.Is(err, control.ErrNoAnswer) {
				return err
			}
			if errs = append(errs, err); d.Held {
				held = append(held, d.ID)
			}
		}
		if wait, _ := cmd.Flags().GetBool("wait"); wait && len(held) > 0 {
			errs = append(errs, o.awaitRelease(cmd.Context(), held))
		}
		return errors.Join(errs...)
	}
	return cmd
}

// changed is a device after a change, on one line.
func changed(d control.Changed) string {
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

// mayErase shows which device is to be erased, and asks for its ID once more unless yes.
func (o *operator) mayErase(cmd *cobra.Command, id string, yes bool) error {
	var d control.Device
	if err := o.client().Get(cmd.Context(), pathOf(id), &d); err != nil {
		return failed(cmd.Name(), id, err)
	}
	fmt.Fprintln(cmd.ErrOrStderr(), clean(described(d)))
	if yes {
		return nil
	}
	return confirm(cmd.InOrStdin(), cmd.ErrOrStderr(), id)
}

// described is a disk as the operator who erases it should recognise it.
func described(d control.Device) string {
	text := cmp.Or(d.Model, "a disk of unknown model")
	if d.Serial != "" {
		text += ", serial number " + d.Serial
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
	if refused := new(control.Refused); errors.As(err, &refused) {
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
