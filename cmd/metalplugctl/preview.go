// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
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
		Args: noArgs,
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

// machine makes the configuration one of the machine that was asked for, and returns its title.
func (p *preview) machine(c *config.Config) (remove func(), title string, err error) {
	none := func() {}
	switch {
	case p.recording == "" && c.Hardware.Recording == "":
		name, err := os.Hostname()
		if err != nil {
			name = "this machine"
		}
		return none, "Machine " + name, nil
	case p.recording == "":
		return none, "Recording " + c.Hardware.Recording, nil
	}
	bundled := slices.ContainsFunc(recording.Bundled(), func(r recording.Named) bool { return r.Name == p.recording })
	info, err := os.Stat(p.recording)
	isFile := err == nil && info.Mode().IsRegular()
	if isFile || !bundled && !errors.Is(err, fs.ErrNotExist) { // what is no file is refused when it is opened
		if c.Hardware.Recording, err = filepath.Abs(p.recording); err != nil {
			return none, "", err
		}
		return none, "Recording " + p.recording, nil
	}
	return p.bundled(c)
}

// bundled writes the bundled recording of that name to a file.
func (p *preview) bundled(c *config.Config) (remove func(), title string, err error) {
	for _, r := range recording.Bundled() {
		if r.Name != p.recording {
			continue
		}
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
	}
	var names bytes.Buffer
	listBundled(&names)
	return nil, "", fmt.Errorf("recording %q: no such file, and none of the bundled ones:\n%s", p.recording, names.String())
}

// emptyHint is what is said on a machine without any device.
func emptyHint() string {
	var hint bytes.Buffer
	hint.WriteString("This machine has no device that the configuration takes. To see what other machines would offer:\n\n")
	for _, r := range recording.Bundled() {
		fmt.Fprintf(&hint, "  %s preview --recording %-12s  # %s\n", os.Args[0], r.Name, r.Title)
	}
	return hint.String()
}

// listBundled writes the names and titles of the bundled recordings.
func listBundled(out io.Writer) {
	for _, r := range recording.Bundled() {
		fmt.Fprintf(out, "  %-12s  %s\n", r.Name, r.Title)
	}
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
