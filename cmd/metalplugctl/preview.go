// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/systemd"
	"github.com/metalplug/metalplug/udev"
	"github.com/metalplug/metalplug/udev/recording"
)

// preview is what "metalplugctl preview" is asked for.
type preview struct {
	config     config.Config
	file       string // of the configuration
	title      string // of the machine
	serve      string // the directory of its sockets, or empty for a temporary one
	containers []container
	output     *string
	view       *view // of each state until the reader leaves, or nil for one state
	out        io.Writer
}

// previewState is everything that is shown at one moment.
type previewState struct {
	Machine    string             `json:"machine"`
	Socket     string             `json:"socket,omitempty"` // that answers other commands
	Resources  []control.Resource `json:"resources"`
	Devices    []control.Device   `json:"devices"` // also those that are not offered
	Containers []container        `json:"containers,omitempty"`
}

// previewCommand shows what would be offered. It runs metalplugd itself, with a stand-in for the kubelet.
func previewCommand() *cobra.Command {
	var p preview
	cmd := &cobra.Command{
		Use:   "preview",
		Short: "Show what a machine would offer to the kubelet",
		Args:  cobra.NoArgs,
	}
	file, recorded := configFlag(cmd), recordingFlag(cmd)
	allocate := cmd.Flags().StringArray("allocate", nil, "show what a container gets, as `RESOURCE=COUNT`")
	_ = cmd.RegisterFlagCompletionFunc("allocate", func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
		c, _ := config.Load(*file) // without one there is nothing to complete
		for _, r := range c.Resources {
			names = append(names, r.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
	p.output = outputFlag(cmd)
	once := onceFlag(cmd)
	serve := textFlag(cmd, "serve", "", "serve a control socket in `DIR`, a new directory")
	logLevel := textFlag(cmd, "log-level", "warn", "least `LEVEL` of the log (default: warn)", "debug", "info", "notice", "warn", "error")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p.out, p.file, p.serve = cmd.OutOrStdout(), *file, *serve
		level, err := systemd.ParseLevel(*logLevel)
		if err != nil {
			return usage("%w", err)
		}
		for _, text := range *allocate {
			c, err := parseContainer(text)
			if err != nil {
				return usage("allocate %w", err)
			}
			p.containers = append(p.containers, c)
		}
		if p.config, err = config.Load(p.file); err != nil {
			return err
		}
		remove, err := p.machine(*recorded)
		if err != nil {
			return err
		}
		defer remove()
		start := func(ctx context.Context) error {
			cmd.SetContext(ctx)
			return p.run(ctx, systemd.TextLogger(cmd.ErrOrStderr(), level), func(n *simulation) error { return p.show(cmd, n) })
		}
		if *once || *p.output == "json" || !isLive(p.out) {
			return start(cmd.Context())
		}
		return inView(cmd, func(ctx context.Context, v *view) error {
			p.view = v
			return start(ctx)
		})
	}
	return cmd
}

// run runs metalplugd, in directories of its own, until show returns.
func (p *preview) run(ctx context.Context, log *slog.Logger, show func(*simulation) error) error {
	dir, remove, err := directoryFor(p.serve)
	if err != nil {
		return err
	}
	defer remove()
	return simulate(ctx, p.config, dir, log, show)
}

// show shows the state once, or in a view at each change.
func (p *preview) show(cmd *cobra.Command, n *simulation) error {
	refused := n.give(cmd.Context(), p.config, p.containers)
	o := operator{socket: n.client.Socket}
	state := previewState{Machine: p.title, Resources: []control.Resource{}, Containers: p.containers}
	if p.serve != "" {
		state.Socket = o.socket
	}
	draw := func() error {
		devices, resources, err := o.ask(cmd)
		if err != nil {
			return err
		}
		state := state
		state.Devices = devices
		for _, r := range resources {
			if expected(r) {
				state.Resources = append(state.Resources, r)
			}
		}
		if p.view == nil {
			return show(p.out, *p.output, false, state, func(s *screen) { s.preview(state) })
		}
		return p.view.show(func(s *screen) { s.preview(state) })
	}
	if p.view != nil {
		return o.eachState(cmd, draw)
	}
	err := draw()
	if p.serve != "" && err == nil {
		<-cmd.Context().Done()
	}
	return cmp.Or(err, refused)
}

// machine makes the configuration one of the machine that was asked for. remove puts away what was made for that.
func (p *preview) machine(recorded string) (remove func(), err error) {
	remove = func() {}
	bundled := slices.IndexFunc(recording.Bundled(), func(r recording.Named) bool { return r.Name == recorded })
	switch info, statErr := os.Stat(recorded); {
	case recorded == "" && p.config.Hardware.Recording == "":
		name, err := os.Hostname()
		if err != nil {
			name = "this machine"
		}
		p.title = "Machine " + name
	case recorded == "":
		p.title = "Recording " + p.config.Hardware.Recording
	case bundled >= 0 && (statErr != nil || !info.Mode().IsRegular()):
		r := recording.Bundled()[bundled]
		dir, err := os.MkdirTemp("", "metalplug-bundled-")
		if err != nil {
			return nil, fmt.Errorf("create a temporary directory: %w: set TMPDIR", err)
		}
		remove = func() { os.RemoveAll(dir) }
		p.title, p.config.Hardware.Recording = fmt.Sprintf("Recording %s: %s", r.Name, r.Title), filepath.Join(dir, r.Name+".umockdev")
		if err := os.WriteFile(p.config.Hardware.Recording, r.Text, 0o600); err != nil {
			remove()
			return nil, fmt.Errorf("unpack recording %s: %w: set TMPDIR", r.Name, err)
		}
	case errors.Is(statErr, fs.ErrNotExist):
		var names screen
		names.bundledRecordings("")
		return nil, fmt.Errorf("recording %q: no such file, and none of the bundled ones:\n%s", recorded, &names)
	default:
		p.title = "Recording " + recorded
		p.config.Hardware.Recording, err = filepath.Abs(recorded) // what is no file is refused when it is opened
	}
	return remove, err
}

// hardware opens what a configuration is about. done puts away what was made for that.
func hardware(c config.Config, log *slog.Logger) (source udev.Source, h *device.Host, done func(), err error) {
	if file := c.Hardware.Recording; file != "" {
		s, err := recording.Open(file)
		if err != nil {
			return nil, nil, nil, err
		}
		s.Warn = func(err error) { log.Warn("recording not taken over", "err", err) }
		return s, &device.Host{Tree: sysfs.At(s.Root())}, func() { s.Close() }, nil
	}
	s, err := udev.Open(udev.Options{Proc: c.Paths.Proc, Cgroup: c.Paths.Cgroup})
	if err != nil {
		return nil, nil, nil, err
	}
	return s, &device.Host{Tree: sysfsOf(c)}, func() { s.Close() }, nil
}

// sysfsOf is where a configuration has the kernel's files.
func sysfsOf(c config.Config) sysfs.Tree {
	return sysfs.Tree{Sys: c.Paths.Sysfs, Dev: c.Paths.Dev, Proc: c.Paths.Proc}
}

// bundledRecordings lists the names and titles of the bundled recordings, each after the words before.
func (s *screen) bundledRecordings(before string) {
	for _, r := range recording.Bundled() {
		s.line("  ", "", fmt.Sprintf("%s%-12s  # %s", before, r.Name, r.Title))
	}
}

// preview writes a state for people. It begins with a summary, and with what may surprise.
func (s *screen) preview(state previewState) {
	s.line("", "", state.Machine)
	if state.Socket != "" {
		s.line("", "", "In another shell: export METALPLUG_SOCKET="+state.Socket+"; metalplugctl list")
	}
	if len(state.Resources) > 0 {
		s.WriteString("\n")
		s.line("", "", "In \"kubectl describe node\":")
		s.WriteString("\n")
		rows := [][]cell{cells("RESOURCE", "CAPACITY", "ALLOCATABLE")}
		for _, r := range state.Resources {
			rows = append(rows, cells(r.Name, fmt.Sprint(r.Capacity), fmt.Sprint(r.Healthy*max(1, r.Shares))))
		}
		s.table("  ", rows...)
	}
	for _, c := range state.Containers {
		s.container(c)
	}
	s.WriteString("\n")
	if !slices.ContainsFunc(state.Devices, func(d control.Device) bool { return d.Resource != "" }) {
		s.line("", "", "The configuration takes no device of this machine. To see what other machines would offer:")
		s.WriteString("\n")
		s.bundledRecordings(os.Args[0] + " preview --recording ")
		s.WriteString("\n")
	}
	if len(state.Devices) > 0 {
		s.devices(urgent(state.Devices), state.Resources, true)
	}
	s.WriteString("\n")
}
