// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/systemd/unitfile"
)

// checkCommand reads the configuration as metalplugd does, and reports all errors. A missing unit or device causes a warning
// instead of an error, because the file may be for another node.
func (o *clientOptions) checkCommand() *cobra.Command {
	var explain bool
	cmd := newCommand("check")
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
		checked.Warnings = unitfile.Complaints(c.Templates()...)
		checked.Warnings = append(checked.Warnings, findIgnored(checked.File)...)
		if *recorded != "" {
			p := preview{file: checked.File}
			if err := p.machine(*recorded); err != nil {
				return err
			}
			c.Hardware.Recording = p.Recording
		}
		all, unclaimed, err := matchResources(c)
		if (explain || *recorded != "") && err != nil {
			return err
		}
		for i, r := range c.Resources {
			reported := ""
			if err == nil && !r.Optional {
				reported = checked.compare(c, r, all[i])
			}
			checked.review(c, r, reported)
		}
		if explain {
			checked.Resources, checked.Unclaimed = all, unclaimed
		}
		return show(cmd.OutOrStdout(), *output, false, checked, func(s *screen) { s.writeCheck(checked) })
	}
	return cmd
}

// backup matches the names of files in the drop-in directory that are probably not drop-ins. Editors and package managers write
// backups, and operators rename a drop-in to disable it.
var backup = regexp.MustCompile(`(?i)^\.|^README|~$|\.(bak|bck|old|orig|save|off|disabled|sw.|rpm[a-z]+|dpkg-[a-z]+|ucf-[a-z]+)$`)

// findIgnored returns a warning for each file or directory that looks like a drop-in, but that metalplugd does not read.
func findIgnored(file string) (warnings []string) {
	dir := filepath.Dir(file)
	beside, _ := filepath.Glob(filepath.Join(dir, "*.d"))
	for _, name := range beside {
		if filepath.Base(name) != dropInDir && strings.HasPrefix(filepath.Base(name), strings.TrimSuffix(filepath.Base(file), ".toml")) {
			warnings = append(warnings, name+" is ignored: drop-ins belong in "+filepath.Join(dir, dropInDir))
		}
	}
	entries, _ := os.ReadDir(filepath.Join(dir, dropInDir)) // the directory is optional
	for _, e := range entries {
		if name := e.Name(); filepath.Ext(name) != ".toml" && !backup.MatchString(name) {
			warnings = append(warnings, filepath.Join(dir, dropInDir, name)+" is ignored: the name of a drop-in must end in .toml")
		}
	}
	return warnings
}

// dropInDir is the name of the drop-in directory ([config.Load]).
const dropInDir = "conf.d"

// warn adds a warning about a resource's key, with the file and line of the key.
func (f *checkedFiles) warn(c config.Config, r config.Resource, key, format string, args ...any) {
	f.Warnings = append(f.Warnings, c.Where(r.Name, key)+": "+fmt.Sprintf(format, args...))
}

// review adds a warning about each valid value that is probably a mistake. review skips the key in the parameter "reported",
// because that key has a warning already.
func (f *checkedFiles) review(c config.Config, r config.Resource, reported string) {
	for i, patterns := range []map[string]string{r.Match, r.Exclude} {
		for _, key := range slices.Sorted(maps.Keys(patterns)) {
			at := []string{"match.", "exclude."}[i] + key
			if remedy := mistake(key, patterns[key]); remedy != "" && at != reported {
				f.warn(c, r, at, "%s = %q: %s", key, patterns[key], remedy)
			}
		}
	}
	switch {
	case r.Serve == config.ServeDRA:
		f.warn(c, r, "serve", "pods get devices of %s only through resource claims, which require metalplug-dra; see docs/dra.md", r.Name)
	case r.Reset.AtStart() && r.Reset.Scrub != config.None:
		f.warn(c, r, "reset.scrub", `reading and erasing a disk may take hours, but the start of a container waits for at most 25s; write when = "release"`)
	}
}

// compare adds a warning if a resource gets no usable device on this node, or if its exclude patterns match no device. The result
// is the key that the warning is about.
func (f *checkedFiles) compare(c config.Config, r config.Resource, match resourceMatch) (key string) {
	switch key = cmp.Or(match.key, "match"); {
	case match.explainIdle() != "":
		if r.Members != nil {
			key = "members"
			match.Unfilled += "; to list the devices, add --explain"
		}
		f.warn(c, r, key, "%s gets no device: %s", r.Name, match.explainIdle())
	case len(r.Exclude) > 0 && !match.excludes:
		f.warn(c, r, key, "exclude matches no device on this node, so %s gets every device that match selects: %s", r.Name, match.Unfilled)
	}
	return key
}

// checkedFiles is the result of checking a configuration.
type checkedFiles struct {
	File  string   `json:"file"` // main file, which may be missing
	Files []string `json:"files"`
	// If there are errors, the other fields are empty.
	Problems  config.Problems `json:"problems,omitempty"`
	Warnings  []string        `json:"warnings,omitempty"`  // about missing units and devices, and probable mistakes
	Resources []resourceMatch `json:"resources,omitempty"` // devices of each resource, only with --explain
	Unclaimed []matchedDevice `json:"unclaimed,omitempty"` // devices without a resource, only with --explain
}

// writeCheck writes the names of the configuration files, the warnings, and the devices of each resource.
func (s *screen) writeCheck(c checkedFiles) {
	for _, f := range c.Files {
		s.line("", "", f+": ok")
	}
	if len(c.Files) == 0 {
		s.line("", "", c.File+": absent: the defaults apply")
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
