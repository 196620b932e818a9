// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
	"github.com/metalplug/metalplug/udev/recording"
)

// preview contains the options of "metalplugctl preview".
type preview struct {
	api.Preview
	file     string // path of the configuration file
	logLevel string // log level of metalplugd
	title    string // title that is shown for the node
	serve    string // directory for the sockets, or empty for a temporary directory
}

// previewState is the state that the command preview shows.
type previewState struct {
	Machine    string          `json:"machine"`
	Socket     string          `json:"socket,omitempty"` // socket for other commands
	Resources  []api.Resource  `json:"resources"`
	Devices    []api.Device    `json:"devices"` // includes devices that are not offered
	Containers []api.Container `json:"containers,omitempty"`
}

// previewCommand starts metalplugd with a simulated kubelet, and shows what metalplugd would offer.
func previewCommand() *cobra.Command {
	var p preview
	cmd := newCommand("preview")
	file, recorded := configFlag(cmd), recordingFlag(cmd)
	allocate := cmd.Flags().StringArray("allocate", nil, "show what a container gets, as `RESOURCE=COUNT`")
	_ = cmd.RegisterFlagCompletionFunc("allocate", func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
		c, _ := config.Load(*file) // if the file has errors, the shell completes no recording
		for _, r := range c.Resources {
			names = append(names, r.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
	output := outputFlag(cmd)
	once := onceFlag(cmd)
	serve := stringFlag(cmd, "serve", "", "", "serve a control socket in `DIR`, a new directory")
	logLevel := choiceFlag(cmd, "log-level", "", "warn", "minimum `LEVEL` of log messages", "debug", "info", "notice", "warn", "error")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p.file, p.serve, p.logLevel = *file, *serve, *logLevel
		for _, text := range *allocate {
			c, err := parseContainer(text)
			if err != nil {
				return usageErrorf("allocate %w", err)
			}
			p.Containers = append(p.Containers, c)
		}
		if err := p.machine(*recorded); err != nil {
			return err
		}
		return live(cmd, *output, *once, func(v *view) error {
			return p.run(cmd, func(o *clientOptions) error { return p.show(cmd, o, *output, v) })
		})
	}
	return cmd
}

// show writes the state once to the output. If v is not nil, the view also shows the state after each change.
func (p *preview) show(cmd *cobra.Command, o *clientOptions, output string, v *view) error {
	state := previewState{Machine: p.title, Containers: p.Containers}
	if p.serve != "" {
		state.Socket = o.socket
	}
	err := o.eachState(cmd, v != nil, func(devices []api.Device, resources []api.Resource) error {
		state := state
		state.Devices, state.Resources = devices, []api.Resource{}
		for _, r := range resources {
			if r.Expected() || r.ByClaim() {
				state.Resources = append(state.Resources, r)
			}
		}
		return v.show(cmd.OutOrStdout(), output, false, state, func(s *screen) { s.preview(state) })
	})
	for _, c := range p.Containers {
		if c.Error != "" && v == nil {
			err = errors.Join(err, errors.New(c.Error))
		}
	}
	if p.serve != "" && v == nil && err == nil {
		<-cmd.Context().Done()
	}
	return err
}

// machine selects the machine whose devices are shown. The parameter "recorded" names a recording. If it is empty, machine
// selects the configured recording, or else this node.
func (p *preview) machine(recorded string) error {
	c, err := config.Load(p.file)
	if err != nil {
		return err
	}
	if recorded = cmp.Or(recorded, c.Hardware.Recording); recorded == "" {
		name, _ := os.Hostname()
		p.title = "Machine " + name
		return nil
	}
	info, err := os.Stat(recorded)
	for _, r := range recording.Bundled() {
		if r.Name == recorded && (err != nil || !info.Mode().IsRegular()) {
			p.title, p.Recording = fmt.Sprintf("Recording %s: %s", r.Name, r.Title), r.Name
			return nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		var names screen
		names.bundledRecordings("")
		return fmt.Errorf("invalid recording %q: must be a file or one of:\n%s", recorded, &names)
	}
	p.title = "Recording " + recorded
	p.Recording, err = filepath.Abs(recorded)
	return err
}

// hardware returns the devices from the source that a configuration selects. The result "done" is a function that removes the
// temporary files.
func hardware(c config.Config) (devices []udev.Device, h *device.Host, done func(), err error) {
	if c.Hardware.Recording == "" {
		devices, err = udev.Enumerate()
		return devices, &device.Host{Tree: sysfsOf(c)}, func() {}, err
	}
	s, err := recording.Open(c.Hardware.Recording)
	if err != nil {
		return nil, nil, nil, err
	}
	devices, err = s.Enumerate()
	return devices, &device.Host{Tree: sysfs.At(s.Root())}, func() { s.Close() }, err
}

// sysfsOf returns the file tree with the mount points from a configuration.
func sysfsOf(c config.Config) sysfs.Tree {
	return sysfs.Tree{Sys: c.Paths.Sysfs, Dev: c.Paths.Dev, Proc: c.Paths.Proc}
}

// bundledRecordings writes the names and titles of the bundled recordings. Each line begins with the given text.
func (s *screen) bundledRecordings(before string) {
	for _, r := range recording.Bundled() {
		s.line("  ", "", fmt.Sprintf("%s%-12s  # %s", before, r.Name, r.Title))
	}
}

// preview writes a state as text, beginning with a summary and warnings.
func (s *screen) preview(state previewState) {
	s.line("", "", state.Machine)
	if state.Socket != "" {
		s.line("", "", "In another shell: export METALPLUG_SOCKET="+state.Socket+"; "+os.Args[0]+" list")
	}
	if len(state.Resources) > 0 {
		s.WriteString("\n")
		s.line("", "", "In \"kubectl describe node\":")
		s.WriteString("\n")
		rows := [][]cell{cells("RESOURCE", "CAPACITY", "ALLOCATABLE")}
		for _, r := range slices.DeleteFunc(slices.Clone(state.Resources), api.Resource.ByClaim) {
			rows = append(rows, cells(r.Name, fmt.Sprint(r.Capacity), fmt.Sprint(r.Healthy*max(1, r.Shares))))
		}
		s.table("  ", rows...)
	}
	for _, c := range state.Containers {
		s.container(c)
	}
	s.WriteString("\n")
	if !slices.ContainsFunc(state.Devices, func(d api.Device) bool { return d.Resource != "" }) {
		s.line("", "", "The configuration matches no device of this machine. For a disk, add a [[resource]], see metalplug.toml(5). To see other machines:")
		s.WriteString("\n")
		s.bundledRecordings(os.Args[0] + " preview --recording ")
		s.WriteString("\n")
	}
	if len(state.Devices) > 0 {
		s.devices(byUrgency(state.Devices), state.Resources, true)
	}
	s.WriteString("\n")
}
