// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/helper"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/systemd"
	"github.com/metalplug/metalplug/udev/recording"
)

// preview is what "metalplugctl preview" shows.
type preview struct {
	config    config.Config
	file      string // of the configuration
	recording string
	title     string // of the machine, for the first line
	allocate  []string
	requests  []request
	output    *format
	live      bool // go on until interrupted, and show every change
	logLevel  string
	log       *slog.Logger
	out       io.Writer
}

// previewCommand shows what would be offered: the inventory runs without a kubelet.
func previewCommand() *cobra.Command {
	var p preview
	cmd := &cobra.Command{
		Use:   "preview",
		Short: "Show what this machine, or a recorded one, would offer to the kubelet",
		Long: `Show what this machine, or a recorded one, would offer to the kubelet.

No daemon, kubelet or cluster is needed, and nothing on the machine changes: no device is reset, erased or initialised. On a
terminal the view is live until it is interrupted; elsewhere one state is printed.

A recording is the text that umockdev-record writes. Saving the file is a hotplug.`,
		Example: `  metalplugctl preview
  metalplugctl preview --recording gpu-server --allocate nvidia.com/gpu=2
  metalplugctl preview --config my.toml -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&p.file, "config", config.DefaultFile, "configuration file; the default one may be missing")
	flags.StringVar(&p.recording, "recording", "", "a file, or the name of a bundled recording, instead of this machine")
	flags.StringArrayVar(&p.allocate, "allocate", nil, "show what a container gets that asks for `RESOURCE=COUNT`")
	p.output = outputFlag(cmd)
	flags.BoolVar(&p.live, "live", false,
		"go on until interrupted and show every change; if not given: whether the output is a terminal")
	flags.StringVar(&p.logLevel, "log-level", "warn", "least level of the log: debug, info, notice, warn, error")
	return cmd
}

// run shows the preview that the flags ask for.
func (p *preview) run(cmd *cobra.Command) error {
	p.out = cmd.OutOrStdout()
	if !cmd.Flags().Changed("live") {
		p.live = isTerminal(p.out)
	}
	level, err := systemd.ParseLevel(p.logLevel)
	if err != nil {
		return usage("%w", err)
	}
	p.log = systemd.TextLogger(cmd.ErrOrStderr(), level)
	for _, text := range p.allocate {
		r, err := parseRequest(text)
		if err != nil {
			return usage("allocate %w", err)
		}
		p.requests = append(p.requests, r)
	}
	if p.config, err = config.Load(p.file); err != nil {
		return err
	}
	remove, title, err := p.machine(&p.config)
	if err != nil {
		return err
	}
	defer remove()
	p.title = title
	return p.follow(cmd.Context())
}

// follow shows what the inventory offers, until ctx ends or once.
func (p *preview) follow(ctx context.Context) error {
	source, host, closeSource, err := hardware(p.config, p.log)
	if err != nil {
		return err
	}
	defer closeSource()
	if p.config.Hardware.Recording == "" { // a disk is read to know whether it would be offered; nothing else is touched
		host.Touch.Probe = helper.Touch(p.config.Reset, p.config.Paths.Sysfs, p.file).Probe
	}
	rules := p.config.Rules()
	for i := range rules {
		rules[i].Init = "" // as if that had been done
	}
	devices := inventory.New(inventory.Options{Source: source, Host: host, Rules: rules, Log: p.log})
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		ended <- devices.Run(ctx)
	}()
	shown := p.show(ctx, devices, host)
	cancel()
	return errors.Join(<-ended, shown)
}

// show shows each state that differs from the last one.
func (p *preview) show(ctx context.Context, devices *inventory.Inventory, host *device.Host) error {
	select {
	case <-devices.Ready():
	case <-ctx.Done():
		return nil
	}
	var last previewState
	for {
		snapshot, changed := devices.Snapshot()
		s, refused := p.state(host, snapshot)
		if !reflect.DeepEqual(s, last) {
			last = s
			if err := p.draw(s); err != nil {
				return err
			}
		}
		if !p.live {
			return refused
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// machine makes the configuration one of the machine that was asked for, and returns its title. remove puts away what was
// made for that.
func (p *preview) machine(c *config.Config) (remove func(), title string, err error) {
	remove = func() {}
	all := recording.Bundled()
	bundled := slices.IndexFunc(all, func(r recording.Named) bool { return r.Name == p.recording })
	switch info, statErr := os.Stat(p.recording); {
	case p.recording == "" && c.Hardware.Recording == "":
		name, err := os.Hostname()
		if err != nil {
			name = "this machine"
		}
		return remove, "Machine " + name, nil
	case p.recording == "":
		return remove, "Recording " + c.Hardware.Recording, nil
	case bundled >= 0 && (statErr != nil || !info.Mode().IsRegular()):
		r := all[bundled]
		dir, err := os.MkdirTemp("", "metalplug-bundled-")
		if err != nil {
			return nil, "", fmt.Errorf("create a temporary directory: %w: set TMPDIR", err)
		}
		c.Hardware.Recording = filepath.Join(dir, r.Name+".umockdev")
		if err := os.WriteFile(c.Hardware.Recording, r.Text, 0o600); err != nil {
			os.RemoveAll(dir)
			return nil, "", fmt.Errorf("unpack recording %s: %w: set TMPDIR", r.Name, err)
		}
		return func() { os.RemoveAll(dir) }, fmt.Sprintf("Recording %s: %s", r.Name, r.Title), nil
	case errors.Is(statErr, fs.ErrNotExist):
		return nil, "", fmt.Errorf("recording %q: no such file, and none of the bundled ones:\n%s", p.recording, bundledRecordings(""))
	}
	c.Hardware.Recording, err = filepath.Abs(p.recording) // what is no file is refused when it is opened
	return remove, "Recording " + p.recording, err
}

// bundledRecordings lists the names and titles of the bundled recordings, each after the words before.
func bundledRecordings(before string) string {
	var list strings.Builder
	for _, r := range recording.Bundled() {
		fmt.Fprintf(&list, "  %s%-12s  # %s\n", before, r.Name, r.Title)
	}
	return list.String()
}

// isTerminal tells whether what is written to out is read by a person at this moment.
func isTerminal(out any) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
