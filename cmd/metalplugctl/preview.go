// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/preview"
	"github.com/metalplug/metalplug/systemd"
	"github.com/metalplug/metalplug/udev/recording"
)

// previewFlags are the flags of "metalplugctl preview".
type previewFlags struct {
	config    string
	recording string
	allocate  []string
	output    string
	live      bool
	logLevel  string
}

// previewCommand shows what would be offered, by the daemon itself in a temporary directory.
func previewCommand() *cobra.Command {
	var f previewFlags
	cmd := &cobra.Command{
		Use:   "preview",
		Short: "Show what this machine, or a recorded one, would offer to the kubelet",
		Long: `Show what this machine, or a recorded one, would offer to the kubelet.

The daemon itself runs for this, with a small device manager in the place of the kubelet's, in a temporary directory: no
kubelet and no cluster is needed, and nothing on the machine changes. On a terminal the view is live until it is
interrupted; elsewhere one state is printed.

A recording is the text that umockdev-record writes. Saving the file is a hotplug.`,
		Example: `  metalplugctl preview
  metalplugctl preview --recording gpu-server --allocate nvidia.com/gpu=2
  metalplugctl preview --config my.toml -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.config, "config", config.DefaultFile, "configuration file; the default one may be missing")
	flags.StringVar(&f.recording, "recording", "", "a file, or the name of a bundled recording, instead of this machine")
	flags.StringArrayVar(&f.allocate, "allocate", nil, "show what a container gets that asks for `RESOURCE=COUNT`")
	flags.StringVarP(&f.output, "output", "o", "table", "table or json")
	flags.BoolVar(&f.live, "live", false,
		"go on until interrupted and show every change; if not given: whether the output is a terminal")
	flags.StringVar(&f.logLevel, "log-level", "warn", "least level of the daemon's log: debug, info, notice, warn, error")
	return cmd
}

// run shows the preview that the flags ask for.
func (f *previewFlags) run(cmd *cobra.Command) error {
	if !cmd.Flags().Changed("live") {
		f.live = isTerminal(cmd.OutOrStdout())
	}
	o, err := f.options(cmd)
	if err != nil {
		return err
	}
	loaded, err := config.Load(f.config)
	if err != nil {
		return err
	}
	remove, title, err := f.machine(&loaded)
	if err != nil {
		return err
	}
	defer remove()
	o.Config, o.Title = loaded, title
	return preview.Run(cmd.Context(), o)
}

// options turns the flags into what a preview is made of.
func (f *previewFlags) options(cmd *cobra.Command) (preview.Options, error) {
	o := preview.Options{
		Out: cmd.OutOrStdout(), Live: f.live, JSON: f.output == "json", Empty: emptyHint(),
		Screen: f.live && isTerminal(cmd.OutOrStdout()),
	}
	if f.output != "json" && f.output != "table" {
		return o, usage("output %q is neither table nor json", f.output)
	}
	level, err := systemd.ParseLevel(f.logLevel)
	if err != nil {
		return o, usage("%w", err)
	}
	o.Log = systemd.TextLogger(cmd.ErrOrStderr(), level)
	for _, text := range f.allocate {
		request, err := preview.ParseRequest(text)
		if err != nil {
			return o, usage("allocate %w", err)
		}
		o.Allocate = append(o.Allocate, request)
	}
	return o, nil
}

// machine makes the configuration one of the machine that was asked for, and returns its title.
func (f *previewFlags) machine(c *config.Config) (remove func(), title string, err error) {
	none := func() {}
	switch {
	case f.recording == "" && c.Hardware.Recording == "":
		name, err := os.Hostname()
		if err != nil {
			name = "this machine"
		}
		return none, "Machine " + name, nil
	case f.recording == "":
		return none, "Recording " + c.Hardware.Recording, nil
	}
	bundled := slices.ContainsFunc(recording.Bundled(), func(r recording.Named) bool { return r.Name == f.recording })
	info, err := os.Stat(f.recording)
	isFile := err == nil && info.Mode().IsRegular()
	if isFile || !bundled && !errors.Is(err, fs.ErrNotExist) { // what is no file is refused when it is opened
		if c.Hardware.Recording, err = filepath.Abs(f.recording); err != nil {
			return none, "", err
		}
		return none, "Recording " + f.recording, nil
	}
	return f.bundled(c)
}

// bundled writes the bundled recording of that name to a file.
func (f *previewFlags) bundled(c *config.Config) (remove func(), title string, err error) {
	for _, r := range recording.Bundled() {
		if r.Name != f.recording {
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
	return nil, "", fmt.Errorf("recording %q: no such file, and none of the bundled ones:\n%s", f.recording, names.String())
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
