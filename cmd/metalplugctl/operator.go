// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
)

// operator is what the commands have in common that ask the daemon.
type operator struct {
	socket string // as given, or empty for that of the configuration
}

// client returns a client of the daemon.
func (o *operator) client() api.Client {
	_, c := o.configured(config.DefaultFile)
	return c
}

// configured returns the configuration in a file, or the defaults where "check" finds something wrong with it, and a client
// for the daemon that it configures.
func (o *operator) configured(file string) (config.Config, api.Client) {
	c, err := config.Load(file)
	if err != nil {
		c = config.Default()
	}
	return c, api.Client{Socket: cmp.Or(o.socket, filepath.Join(c.Paths.Run, "control.sock"))}
}

// deviceIDs completes the IDs of devices. It completes the first one, or all of a command that takes several. Only a device that is cordoned
// can be uncordoned.
func (o *operator) deviceIDs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var devices []api.Device
	if cmd.ValidateArgs(append(slices.Clone(args), "x")) != nil || o.client().Get(cmd.Context(), "/v1/devices", &devices) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var ids []string
	for _, d := range devices {
		if d.ID != "" && !slices.Contains(args, d.ID) && (cmd.Name() != "uncordon" || d.Cordoned) {
			ids = append(ids, fmt.Sprintf("%s\t%s", d.ID, d.Resource))
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}
