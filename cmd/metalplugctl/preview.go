// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/internal/fsutil"
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
		c, _ := config.Load(*file) // if the file has errors, the shell completes no resource
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
		if err := p.selectMachine(*recorded); err != nil {
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
		return v.show(cmd.OutOrStdout(), output, false, state, func(s *screen) { s.writePreview(state) })
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

// selectMachine selects the machine whose devices are shown. The parameter "recorded" names a recording. If it is empty,
// selectMachine selects the configured recording, or else this node.
func (p *preview) selectMachine(recorded string) error {
	c, err := config.Load(p.file)
	if err != nil {
		return err
	}
	if recorded = cmp.Or(recorded, c.Hardware.Recording); recorded == "" {
		name, _ := os.Hostname()
		p.title = "Machine " + name
		return nil
	}
	for _, r := range recording.Bundled() {
		if r.Name == recorded {
			p.title, p.Recording = fmt.Sprintf("Recording %s: %s", r.Name, r.Title), r.Name
			return nil
		}
	}
	if _, err := os.Stat(recorded); errors.Is(err, fs.ErrNotExist) {
		var names screen
		names.writeRecordings("")
		return fmt.Errorf("invalid recording %q: must be a file or one of:\n%s", recorded, &names)
	}
	p.title = "Recording " + recorded
	p.Recording, err = filepath.Abs(recorded)
	return err
}

// listHardware returns the devices from the source that a configuration selects. The result "done" is a function that removes the
// temporary files.
func listHardware(c config.Config) (devices []udev.Device, h *device.Host, done func(), err error) {
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

// writeRecordings writes the names and titles of the bundled recordings. Each line begins with the given text.
func (s *screen) writeRecordings(before string) {
	for _, r := range recording.Bundled() {
		s.line("  ", "", fmt.Sprintf("%s%-12s  # %s", before, r.Name, r.Title))
	}
}

// writePreview writes a state as text, beginning with a summary and warnings.
func (s *screen) writePreview(state previewState) {
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
		s.writeContainer(c)
	}
	s.WriteString("\n")
	if !slices.ContainsFunc(state.Devices, func(d api.Device) bool { return d.Resource != "" }) {
		s.line("", "", "The configuration matches no device of this machine. For a disk, add a [[resource]], see metalplug.toml(5). To preview another machine:")
		s.WriteString("\n")
		s.writeRecordings(os.Args[0] + " preview --recording ")
		s.WriteString("\n")
	}
	if len(state.Devices) > 0 {
		s.writeDevices(byUrgency(state.Devices), state.Resources, true)
	}
	s.WriteString("\n")
}

// parseContainer parses a container's request, which has the form RESOURCE=COUNT, such as "nvidia.com/gpu=2".
func parseContainer(text string) (api.Container, error) {
	name, count, ok := strings.Cut(text, "=")
	if name == "" {
		return api.Container{}, fmt.Errorf("%q: the name of the resource is missing", text)
	}
	if !ok {
		count = "1"
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 || strconv.Itoa(n) != count {
		return api.Container{}, fmt.Errorf("%q: the number of devices must be 1 or more, not %q", text, count)
	}
	return api.Container{Resource: name, Count: n}, nil
}

// writeContainer writes the devices and environment variables that a container would get.
func (s *screen) writeContainer(c api.Container) {
	s.WriteString("\n")
	asks := fmt.Sprintf("A container that requests %s=%d gets", c.Resource, c.Count)
	if c.Error != "" {
		s.line("", "", asks+" nothing: "+c.Error)
		return
	}
	s.line("", "", asks+":")
	s.WriteString("\n")
	var rows [][]cell
	for _, id := range c.Devices {
		rows = append(rows, cells("device", id))
	}
	for _, n := range c.Nodes {
		row := cells("node", n.Container, n.Permissions)
		if n.Host != n.Container {
			row = append(row, cell{text: "from " + n.Host})
		}
		rows = append(rows, row)
	}
	for _, name := range c.CDI {
		rows = append(rows, cells("cdi", name))
	}
	for _, key := range slices.Sorted(maps.Keys(c.Env)) {
		rows = append(rows, cells("env", key+"="+c.Env[key]))
	}
	s.table("  ", rows...)
}

// directoryFor creates a directory for a preview, which removes the directory when it ends. If name is empty, the directory is
// temporary. Otherwise, the named directory must not exist yet.
func directoryFor(name string) (dir string, err error) {
	if name == "" {
		if dir, err = os.MkdirTemp("", "metalplug-"); err != nil {
			return "", fmt.Errorf("create a temporary directory: %w; set TMPDIR", err)
		}
		return dir, nil
	}
	if dir, err = filepath.Abs(name); err != nil {
		return "", err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", fmt.Errorf("serve in %s: %w; name a new directory", dir, fsutil.Cause(err))
	}
	return dir, nil
}

// daemonFile returns the path of metalplugd. daemonFile first looks in the directory of this program, and then where the package
// installs metalplugd.
func daemonFile() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(self)
	for _, file := range []string{filepath.Join(dir, "metalplugd"), filepath.Join(dir, "../sbin/metalplugd")} {
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("metalplugd not found in %s or %s", dir, filepath.Join(dir, "../sbin"))
}

// run runs metalplugd until the function "show" returns or the command ends. run calls show when the resources are registered and
// the containers have their devices. The options for show contain the socket of this metalplugd.
func (p *preview) run(cmd *cobra.Command, show func(*clientOptions) error) error {
	file, err := daemonFile()
	if err != nil {
		return err
	}
	dir, err := directoryFor(p.serve)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p.Dir = dir
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	child := exec.Command(file, "--preview", "--config", p.file, "--log-level", p.logLevel)
	child.Stderr = cmd.ErrOrStderr()
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must not reach metalplugd, because this program stops it
	in, inErr := child.StdinPipe()
	out, outErr := child.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return fmt.Errorf("start metalplugd: %w", err)
	}
	context.AfterFunc(ctx, func() { in.Close() }) // metalplugd exits when its input is closed
	err = json.NewEncoder(in).Encode(p.Preview)
	if err == nil {
		err = json.NewDecoder(out).Decode(&p.Preview)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- child.Wait()
		cancel()
	}()
	switch {
	case cmd.Context().Err() != nil: // the command was interrupted
		err = nil
	case errors.Is(err, io.EOF): // metalplugd has printed the reason on standard error
		err = errFound
	case err == nil:
		cmd.SetContext(ctx)
		err = show(&clientOptions{socket: filepath.Join(dir, "control.sock")})
	}
	cancel()
	if end := <-ended; end != nil && err == nil {
		err = fmt.Errorf("metalplugd: %w", end)
	}
	return err
}
