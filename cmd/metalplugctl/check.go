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

	"github.com/metalplug/metalplug/daemon/bundle"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/systemd/unitfile"
	"github.com/metalplug/metalplug/udev"
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
		c, err := config.LoadUsable(checked.File)
		if errors.As(err, &checked.Problems) && *output == "json" {
			if err := show(cmd.OutOrStdout(), *output, false, checked, nil); err != nil {
				return err
			}
			return errFound
		}
		if err != nil {
			return err
		}
		checked.Files = append([]string{}, c.Files...)
		checked.Warnings = unitfile.Complaints(c.Templates()...)
		checked.Warnings = append(checked.Warnings, findIgnored(checked.File)...)
		if *recorded != "" {
			p := preview{file: checked.File}
			if err := p.selectMachine(*recorded); err != nil {
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
				reported = checked.warnOfMatch(c, r, all[i])
			}
			checked.warnOfMistakes(c, r, reported)
		}
		if explain {
			checked.Resources, checked.Unclaimed = all, unclaimed
		}
		return show(cmd.OutOrStdout(), *output, false, checked, func(s *screen) { s.writeCheck(checked) })
	}
	return cmd
}

// backup is a regular expression for the names of files in the drop-in directory that are probably not drop-ins. Editors and
// package managers write backups, and operators rename a drop-in to disable it. Each request to a helper starts this program, so
// the program compiles regular expressions only when it needs them.
const backup = `(?i)^\.|^README|~$|\.(bak|bck|old|orig|save|off|disabled|sw.|rpm[a-z]+|dpkg-[a-z]+|ucf-[a-z]+)$`

// findIgnored returns a warning for each file or directory that looks like a drop-in, but that metalplugd does not read.
func findIgnored(file string) (warnings []string) {
	dir := filepath.Dir(file)
	directories, _ := filepath.Glob(filepath.Join(dir, "*.d"))
	for _, name := range directories {
		if filepath.Base(name) != dropInDir && strings.HasPrefix(filepath.Base(name), strings.TrimSuffix(filepath.Base(file), ".toml")) {
			warnings = append(warnings, name+" is ignored: drop-ins belong in "+filepath.Join(dir, dropInDir))
		}
	}
	entries, _ := os.ReadDir(filepath.Join(dir, dropInDir)) // the directory is optional
	for _, e := range entries {
		if name := e.Name(); filepath.Ext(name) != ".toml" && !regexp.MustCompile(backup).MatchString(name) {
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

// warnOfMistakes adds a warning about each valid value that is probably a mistake. warnOfMistakes skips the key in the
// parameter "reported", because that key has a warning already.
func (f *checkedFiles) warnOfMistakes(c config.Config, r config.Resource, reported string) {
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
	case r.Reset.AtStart() && r.Reset.Scrubs():
		f.warn(c, r, "reset.scrub", `reading and erasing a disk may take hours, but the start of a container waits for at most 25s; write when = "release"`)
	}
}

// warnOfMatch adds a warning if a resource has no usable device on this node, or if its exclude patterns match no device. The
// result is the key that the warning is about.
func (f *checkedFiles) warnOfMatch(c config.Config, r config.Resource, match resourceMatch) (key string) {
	key = cmp.Or(match.key, "match")
	switch idle := match.explainIdle(); {
	case idle != "" && r.Members != nil:
		f.warn(c, r, "members", "%s gets no device: %s; to list the devices, add --explain", r.Name, idle)
	case idle != "":
		f.warn(c, r, key, "%s gets no device: %s", r.Name, idle)
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

// writeCheck writes the configuration file names, the warnings, and each resource's devices.
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
		s.writeMatch(r)
	}
}

// resourceMatch lists the devices on the node that match a resource.
type resourceMatch struct {
	Resource string          `json:"resource"`
	Devices  []matchedDevice `json:"devices"` // devices that the resource gets
	Lost     []matchedDevice `json:"lost"`    // matching devices that an earlier resource gets
	// Unfilled explains why a bundle resource has no bundle, or why the key match or exclude selects no device. If there is no
	// such problem, Unfilled is empty.
	Unfilled string `json:"unfilled,omitempty"`
	key      string // configuration key that Unfilled is about, such as "match.PCI_ID"
	excludes bool   // whether the exclude patterns match a device that the resource would otherwise get
}

// matchedDevice is a device in the output of check --explain.
type matchedDevice struct {
	ID string `json:"id"`
	By string `json:"by,omitempty"` // earlier resource that gets the device
	// Reason says why the device is not offered or why it is Unhealthy.
	Reason string `json:"reason,omitempty"`
}

// matchResources assigns all devices to resources, in the order in which the configuration lists the resources. The devices come
// from the node or from the configured recording. matchResources reads the same files as metalplugd and changes nothing.
func matchResources(c config.Config) (all []resourceMatch, unclaimed []matchedDevice, err error) {
	devices, host, done, err := listHardware(c)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	rules := c.Rules()
	all = make([]resourceMatch, len(rules))
	for i, r := range rules {
		all[i] = resourceMatch{Resource: r.Resource, Devices: []matchedDevice{}, Lost: []matchedDevice{}}
	}
	var seen []device.Sighting
	for _, u := range devices {
		found := device.Inspect(host, rules, &u)
		seen = append(seen, found...)
		for _, s := range found {
			if s.Resource == "" {
				unclaimed = append(unclaimed, matchedDevice{ID: cmp.Or(s.Device.ID, s.Device.SysPath), Reason: reason(s)})
			}
			// takes is true if an earlier rule has already taken the device.
			takes := false
			for i, r := range rules {
				all[i].excludes = all[i].excludes || excludes(host, r, u, s.Device.ID)
				switch {
				case s.Resource == r.Resource:
					takes = true
					all[i].Devices = append(all[i].Devices, matchedDevice{ID: s.Device.ID, Reason: reason(s)})
				case takes && matchesToo(host, r, u, s.Device.ID):
					all[i].Lost = append(all[i].Lost, matchedDevice{ID: s.Device.ID, By: s.Resource})
				}
			}
		}
	}
	for i, r := range rules {
		switch {
		case r.Bundle != nil:
			var ids []string
			ids, all[i].Unfilled = bundle.Seen(r.Bundle, seen)
			for _, id := range ids {
				all[i].Devices = append(all[i].Devices, matchedDevice{ID: id})
			}
		case !c.Resources[i].Optional:
			all[i].explainPatterns(host, devices, r)
		}
	}
	byID := func(a, b matchedDevice) int { return strings.Compare(a.ID, b.ID) }
	slices.SortFunc(unclaimed, byID)
	for i := range all {
		slices.SortFunc(all[i].Devices, byID)
		slices.SortFunc(all[i].Lost, byID)
	}
	return all, unclaimed, nil
}

// explainPatterns sets t.Unfilled if the "match" or "exclude" patterns of a rule match none of the given devices.
func (t *resourceMatch) explainPatterns(h *device.Host, devices []udev.Device, r device.Rule) {
	key, text := "", ""
	switch {
	case len(t.Devices) == 0 && t.excludes:
		t.key, text = "exclude", "every device selected by match is also excluded"
	case len(t.Devices) == 0 && r.Group != nil:
		t.key = "group"
		for _, node := range r.Group.Nodes {
			if _, text = device.Unmatched(h, r.Class, devices, map[string]string{"DEVNAME": node}); text != "" {
				break
			}
		}
	case len(t.Devices) == 0 && len(t.Lost) == 0:
		t.key = "match"
		key, text = device.Unmatched(h, r.Class, devices, r.Match)
	case t.explainIdle() == "" && len(r.Exclude) > 0 && !t.excludes:
		t.key = "exclude"
		key, text = device.Unmatched(h, r.Class, devices, r.Exclude)
	}
	if t.Unfilled = text; key != "" {
		pattern := map[string]map[string]string{"match": r.Match, "exclude": r.Exclude}[t.key][key]
		if remedy := mistake(key, pattern); remedy != "" { // this remedy helps more than a suggested pattern
			t.Unfilled = fmt.Sprintf("no device of class %s has %s = %q; %s", r.Class.Name, key, pattern, remedy)
		}
		t.key += "." + key
	}
}

// explainIdle explains why the resource has no usable device, or returns "" if it has one.
func (t resourceMatch) explainIdle() string {
	switch {
	case slices.ContainsFunc(t.Devices, func(d matchedDevice) bool { return d.Reason == "" }):
		return ""
	case len(t.Devices) > 0:
		return t.Devices[0].ID + ": " + t.Devices[0].Reason
	case t.Unfilled != "":
		return t.Unfilled
	case len(t.Lost) > 0:
		return t.Lost[0].By + " comes first and gets the devices"
	}
	return "no present device matches"
}

// mistakes describes patterns that are valid but probably wrong, and how to correct them. For each pattern, only the first
// matching entry counts. An entry with a key applies to that property, and an entry without a key applies to all properties. If
// the entry has no remedy, the pattern is correct.
var mistakes = []struct {
	key     string
	pattern string // a regular expression
	remedy  string
}{
	{"", `^$`, "an empty pattern matches nothing"},
	{"", `^\^|\$$|\.\+|\]\+|\\[dws]|\(.*\|.*\)|\(\?|^!|\{.*,.*\}| \||\| `, "the pattern looks like a regular expression or a list; write a " +
		"shell pattern, with * for any text, ? for one character and | without spaces between alternatives"},
	{"DEVPATH", `(^|\|)/?\*+($|\|)`, "the pattern matches every device node; add a property of the intended devices"},
	{"DEVNAME", `(^|\|)(/dev/?)?\*+($|\|)`, "the pattern matches every device node; write the paths of the intended nodes"},
	{"DEVNAME", `(^|\|)[^/*?[|]`, `write the path, as in "/dev/kvm"`},
	{"DEVNAME", `.`, ""}, // this pattern is not a mistake, because names of device nodes may contain dots
	{"PCI_SLOT_NAME", `(^|\|)[0-9a-f]{2}:[0-9a-f]{2}\.[0-7*?[]`, `write the domain too, as in "0000:18:00.0"`},
	{"PCI_ID", `(?i)0x|(^|\|)[0-9a-f]{4}($|\|)`, `write VENDOR:DEVICE, as in "10DE:2330" or "10DE:*"`},
	{"", `\.\*`, "the pattern looks like a regular expression; write * for any text"},
}

// mistake returns the remedy for a pattern that is probably a mistake, and "" for any other pattern.
func mistake(key, pattern string) string {
	for _, m := range mistakes {
		if (m.key == "" || m.key == key) && regexp.MustCompile(m.pattern).MatchString(pattern) {
			return m.remedy
		}
	}
	return ""
}

// reason explains why pods currently cannot use a device, or returns "" if they can.
func reason(s device.Sighting) string {
	if err := cmp.Or(s.Offer, s.Health); err != nil {
		return err.Error()
	}
	return ""
}

// matchesToo reports whether a rule would match a device if there were no other rules.
func matchesToo(h *device.Host, r device.Rule, u udev.Device, id string) bool {
	return slices.ContainsFunc(device.Inspect(h, []device.Rule{r}, &u), func(s device.Sighting) bool {
		return s.Device.ID == id && s.Resource == r.Resource
	})
}

// excludes reports whether only the exclude patterns of a rule prevent the rule from matching a device.
func excludes(h *device.Host, r device.Rule, u udev.Device, id string) bool {
	without := r
	without.Exclude = nil
	return len(r.Exclude) > 0 && matchesToo(h, without, u, id) && !matchesToo(h, r, u, id)
}

// writeMatch writes a list of the devices that match a resource.
func (s *screen) writeMatch(t resourceMatch) {
	text := fmt.Sprintf("devices: %d", len(t.Devices))
	if len(t.Devices) == 0 {
		text += "; " + t.explainIdle()
	}
	s.line(t.Resource+"  ", bold, text)
	for _, d := range t.Devices {
		if d.Reason != "" {
			d.ID += ": not available to pods: " + d.Reason
		}
		s.line("  ", "", d.ID)
	}
	for _, d := range t.Lost {
		s.line("  -- ", yellow, d.ID+": "+d.By+" comes first and gets this device")
	}
}
