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

// clientOptions contains the options that are common to all commands that connect to metalplugd.
type clientOptions struct {
	socket string // value of the flag --socket, or empty for the socket in the configuration
}

// client returns a client for the socket in the flag --socket, or else in the default configuration file.
func (o *clientOptions) client() api.Client {
	_, c := o.loadConfig(config.DefaultFile)
	return c
}

// loadConfig returns the configuration in a file, or the defaults if the file contains errors. The client uses the socket in
// the flag --socket, or else in this configuration.
func (o *clientOptions) loadConfig(file string) (config.Config, api.Client) {
	c, err := config.Load(file)
	if err != nil {
		c = config.Default()
	}
	return c, api.Client{Socket: cmp.Or(o.socket, filepath.Join(c.Paths.Run, "control.sock"))}
}

// deviceIDs returns the device IDs that the shell offers as completions of an argument. The result is empty if the command
// accepts no further argument. For uncordon, the result contains cordoned devices only.
func (o *clientOptions) deviceIDs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
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
