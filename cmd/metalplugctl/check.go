// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/systemd"
)

// checkCommand reads the configuration like metalplugd and reports all errors. An operator may check a file on another
// node. So a missing unit or device is only a warning.
func (o *clientOptions) checkCommand() *cobra.Command {
	var explain bool
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check the configuration and its drop-ins",
		Args:  cobra.MaximumNArgs(1),
	}
	cmd.Flags().BoolVar(&explain, "explain", false, "list the devices of each resource")
	recorded, output := recordingFlag(cmd), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		checked := checkedFiles{File: config.DefaultFile}
		if len(args) == 1 {
			checked.File = args[0]
		}
		c, err := config.Load(checked.File)
		if err == nil {
			err = c.Check()
		}
		if errors.As(err, &checked.Problems) && *output == "json" {
			return cmp.Or(show(cmd.OutOrStdout(), *output, false, checked, nil), errFound)
		}
		if err != nil {
			return err
		}
		checked.Files = append([]string{}, c.Files...)
		checked.Warnings = systemd.Units{}.Complaints(cmd.Context(), c.Templates()...)
		checked.Warnings = append(checked.Warnings, ignored(checked.File)...)
		if *recorded != "" {
			remove, err := simulate(&c, checked.File, *recorded)
			if err != nil {
				return err
			}
			defer remove()
		}
		all, unclaimed, err := matchResources(c)
		if (explain || *recorded != "") && err != nil {
			return err
		}
		for i, r := range c.Resources {
			checked.Warnings = append(checked.Warnings, mistaken(c, r.Name, "match", r.Match)...)
			checked.Warnings = append(checked.Warnings, mistaken(c, r.Name, "exclude", r.Exclude)...)
			if r.Serve == config.ServeDRA {
				checked.Warnings = append(checked.Warnings, fmt.Sprintf(`%s: this version has no DRA driver, so that no pod gets a device of %s; write serve = "plugin"`,
					c.Where(r.Name, "serve"), r.Name))
			}
			if err == nil && !r.Optional && all[i].idle() != "" {
				key := "match"
				if r.Members != nil {
					key = "members"
				}
				checked.Warnings = append(checked.Warnings, fmt.Sprintf("%s: %s takes no device: %s; see metalplugctl check --explain %s",
					c.Where(r.Name, key), r.Name, all[i].idle(), checked.File))
			}
		}
		if explain {
			checked.Resources, checked.Unclaimed = all, unclaimed
		}
		return show(cmd.OutOrStdout(), *output, false, checked, func(s *screen) { s.checked(checked) })
	}
	return cmd
}

// ignored returns a warning for each file beside the drop-ins that is probably meant as one.
func ignored(file string) (warnings []string) {
	dir := filepath.Join(filepath.Dir(file), "conf.d")
	entries, _ := os.ReadDir(dir) // the directory need not exist
	for _, e := range entries {
		if name := e.Name(); slices.Contains([]string{".conf", ".TOML"}, filepath.Ext(name)) {
			warnings = append(warnings, filepath.Join(dir, name)+" is ignored: the name of a drop-in ends in .toml")
		}
	}
	return warnings
}

// checkedFiles is a configuration.
type checkedFiles struct {
	File      string          `json:"file"` // main file, which may be absent
	Files     []string        `json:"files"`
	Problems  config.Problems `json:"problems,omitempty"`  // errors, without which the rest is absent
	Warnings  []string        `json:"warnings,omitempty"`  // missing units and devices of this node
	Resources []resourceMatch `json:"resources,omitempty"` // only with --explain: the devices of each resource
	Unclaimed []matchedDevice `json:"unclaimed,omitempty"` // only with --explain: the devices without a resource
}

// checked writes the files and the devices of each resource.
func (s *screen) checked(c checkedFiles) {
	for _, f := range c.Files {
		fmt.Fprintf(s, "%s: ok\n", f)
	}
	if len(c.Files) == 0 {
		fmt.Fprintf(s, "%s: absent: the defaults apply\n", c.File)
	}
	for _, text := range c.Warnings {
		s.line("warning: ", yellow, text)
	}
	if len(c.Unclaimed) > 0 {
		c.Resources = append(c.Resources, resourceMatch{Resource: "no resource", Devices: c.Unclaimed})
	}
	for _, r := range c.Resources {
		s.WriteString("\n")
		s.resourceMatch(r)
	}
}
