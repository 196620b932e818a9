// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
	"github.com/metalplug/metalplug/udev/recording"
)

// recordCommand writes a recording. The command reads sysfs without metalplugd, because users often write a bug report when
// metalplugd does not start.
func (o *clientOptions) recordCommand() *cobra.Command {
	var serials bool
	cmd := newCommand("record")
	file := configFlag(cmd)
	archive := stringFlag(cmd, "bundle", "", "", "write a complete report to `FILE`, a .tar.gz")
	cmd.Flags().BoolVar(&serials, "serials", false, "keep serial numbers and other identities")
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := config.Load(*file)
		if err != nil && *archive == "" { // with --bundle, the command still writes the report, which may be about these errors
			return err
		} else if err != nil {
			files := c.Files
			c = config.Default()
			c.Files = files
		}
		devices, err := udev.Enumerate()
		if err != nil {
			return err
		}
		r := &recording.Recorder{Tree: sysfsOf(c), Serials: serials}
		if *archive == "" {
			text := record(r, c, devices)
			return show(cmd.OutOrStdout(), *output, false, map[string]string{"recording": text}, func(s *screen) { s.WriteString(text) })
		}
		b := bugReport{recorder: r}
		b.collect(cmd.Context(), o, *file, c, devices)
		if err := b.write(*archive); err != nil {
			return err
		}
		return show(cmd.OutOrStdout(), *output, false, map[string]string{"bundle": *archive}, func(s *screen) {
			s.line("", "", *archive+": read it before you send it")
		})
	}
	return cmd
}

// record returns a recording of the devices that metalplugd needs to build its device list.
func record(r *recording.Recorder, c config.Config, devices []udev.Device) string {
	serials := "replaced"
	if r.Serials {
		serials = "kept"
	}
	text := r.Record(selectDevices(&device.Host{Tree: r.Tree}, c.Rules(), devices))
	return fmt.Sprintf("# Recorded by metalplugctl %s. Serial numbers were %s.\n\n%s", version, serials, text)
}

// extraSubsystems lists subsystems that device classes read, in addition to the subsystems of their own devices.
var extraSubsystems = []string{
	"node", "block", "nvme", "nvme-subsystem", "drm", "accel", "kfd", "infiniband", "infiniband_verbs", "infiniband_mad", "infiniband_cm",
	"fpga_region", "fpga_manager", "dfl", "vfio", "vfio-dev",
}

// moduleDirs lists the sysfs directories of kernel modules. Classes read the parameters of these modules.
var moduleDirs = []string{"/sys/module/nvidia", "/sys/module/amdgpu", "/sys/module/ib_core", "/sys/module/nvme_core"}

// selectDevices returns the devices that a class uses, their parents, and the devices in the subsystems of extraSubsystems.
// selectDevices omits RAM disks and unused loop devices.
func selectDevices(h *device.Host, rules []device.Rule, devices []udev.Device) []udev.Device {
	keep := make(map[string]bool)
	var subjects []string
	for _, d := range devices {
		if slices.Contains(extraSubsystems, d.Subsystem) && !isUnused(h, d) || slices.Contains(moduleDirs, d.SysPath) ||
			device.OffersNode(d.DevNode) || len(device.Inspect(h, rules, &d)) > 0 {
			subjects = append(subjects, d.SysPath)
			keep[d.SysPath] = true
		}
	}
	above := make(map[string]bool)
	for _, path := range subjects {
		for at := strings.LastIndexByte(path, '/'); at > 0; at = strings.LastIndexByte(path[:at], '/') {
			above[path[:at]] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(devices), func(d udev.Device) bool { return !keep[d.SysPath] && !above[d.SysPath] })
}

// isUnused reports whether a device is an unused block device that the kernel has created in advance, such as a loop device
// that is not set up.
func isUnused(h *device.Host, d udev.Device) bool {
	name := strings.TrimPrefix(d.DevNode, "/dev/")
	if strings.HasPrefix(name, "ram") || strings.HasPrefix(name, "zram") || strings.HasPrefix(name, "nbd") {
		return true
	}
	return strings.HasPrefix(name, "loop") && !h.Present(d.SysPath+"/loop/backing_file")
}

// bugReport collects the files for a bug report. If a part is unavailable, its file contains the reason.
type bugReport struct {
	recorder *recording.Recorder // masks the contents of each file
	files    []bundleFile
}

// bundleFile is a file for a report. Identities in its text are not masked yet.
type bundleFile struct{ name, text string }

// journalLines is the number of recent journal lines in a report.
const journalLines = "5000"

// add adds a file to the report. If err is not nil, the file contains the error.
func (b *bugReport) add(name string, text []byte, err error) {
	if err != nil {
		text = fmt.Appendf(text, "not available: %v\n", err)
	}
	b.files = append(b.files, bundleFile{name, string(text)})
}

// collect adds the recording, the configuration, metalplugd's answers, the doctor's findings, the units' journal, and version
// numbers.
func (b *bugReport) collect(ctx context.Context, o *clientOptions, file string, c config.Config, devices []udev.Device) {
	b.add("machine.umockdev", []byte(record(b.recorder, c, devices)), nil)
	// c.Files is empty if the configuration file is missing or has errors.
	if len(c.Files) == 0 {
		c.Files = []string{file}
	}
	for _, name := range c.Files {
		b.addConfiguration(name)
	}
	d := newDoctor(ctx, o, file)
	b.addAnswers(ctx, d.client)
	findings := screen{}
	findings.writeFindings(d.examine())
	b.add("doctor.txt", findings.Bytes(), nil)
	b.addJournal(ctx)
	b.addVersions()
}

// addConfiguration adds a configuration file. addConfiguration masks the values of env, because they may be passwords. If a
// value contains an escape sequence, the text may show it in another form, so addConfiguration omits the file. A part of a value that
// metalplugd replaces is not a secret (see [config.Resource.Env]).
func (b *bugReport) addConfiguration(name string) {
	content, err := os.ReadFile(name)
	values, invalid := config.EnvValues(string(content))
	for _, value := range values {
		if regexp.MustCompile(`\{[a-z]+\}`).ReplaceAllString(value, "") == "" {
			continue
		}
		b.recorder.Hide(value)
		if !bytes.Contains(content, []byte(value)) {
			invalid = errors.New("a value of env contains an escape sequence")
		}
	}
	if err == nil && invalid != nil {
		content, err = nil, fmt.Errorf("omitted, because env may contain passwords: %w", invalid)
	}
	b.add("configuration/"+strings.TrimPrefix(name, "/"), content, err)
}

// addAnswers adds metalplugd's answers to the bug report. It masks pod and user names in the decoded fields, because in the
// encoded text, a short name may be part of another word.
func (b *bugReport) addAnswers(ctx context.Context, c api.Client) {
	add := func(name string, answer any, err error) {
		text, _ := json.MarshalIndent(answer, "", "  ") // this cannot fail, because the answer was decoded from JSON
		b.add(name, text, err)
	}
	var devices []api.Device
	err := c.Get(ctx, "/v1/devices", &devices)
	for i := range devices {
		d := &devices[i]
		b.hideDevice(d.ID)
		b.recorder.Hide(d.Serial)
		for _, p := range podsOf(*d) {
			b.recorder.Hide(p.Namespace+"/"+p.Name, p.Name)
			d.Allocated, d.Holders = &api.Pod{Namespace: "namespace", Name: "pod", Container: "container"}, nil
		}
		b.hideUser(d.Cordon)
	}
	add("devices.json", devices, err)
	var status api.Status
	err = c.Get(ctx, "/v1/status", &status)
	for i := range status.Cordons {
		b.hideUser(&status.Cordons[i].Cordon)
	}
	add("status.json", status, err)
	var counted api.KubeletCounts
	err = c.Get(ctx, "/v1/kubelet", &counted)
	add("kubelet.json", counted, err)
}

// hideUser masks the user who cordoned a device.
func (b *bugReport) hideUser(c *api.Cordon) {
	if c != nil {
		b.recorder.Hide(c.By())
		c.User, c.Login = "user", ""
	}
}

// hideDevice masks the identity in a device ID, but not the prefix that names the class. PCI addresses are not masked.
func (b *bugReport) hideDevice(id string) {
	if _, identity, _ := strings.Cut(id, "-"); !regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]`).MatchString(identity) {
		b.recorder.Hide(identity)
	}
}

// addJournal adds the newest journal lines from metalplug's units, with the node's name masked.
func (b *bugReport) addJournal(ctx context.Context) {
	out, err := exec.CommandContext(ctx, "journalctl", "--unit=metalplug*", "--output=json", "--all", "--lines="+journalLines).Output()
	var text strings.Builder
	for line := range bytes.Lines(out) {
		var entry map[string]any
		if json.Unmarshal(line, &entry) != nil {
			continue
		}
		field := func(name string) string {
			value, _ := entry[name].(string)
			return value
		}
		b.hideDevice(field("METALPLUG_DEVICE"))
		b.recorder.Hide(field("METALPLUG_POD"), field("METALPLUG_SERIAL"), field("METALPLUG_USER"), field("_HOSTNAME"), field("_MACHINE_ID"))
		var microseconds int64
		fmt.Sscan(field("__REALTIME_TIMESTAMP"), &microseconds)
		fmt.Fprintf(&text, "%s %s %s\n", time.UnixMicro(microseconds).UTC().Format(api.TimeFormat), field("_SYSTEMD_UNIT"), field("MESSAGE"))
	}
	b.add("journal.txt", []byte(text.String()), err)
}

// addVersions adds the versions of the software on the node, with the node's name masked.
func (b *bugReport) addVersions() {
	name, _ := os.Hostname()
	b.recorder.Hide(name)
	var kernel unix.Utsname
	err := unix.Uname(&kernel)
	system, _ := os.ReadFile("/etc/os-release")
	b.add("versions.txt", fmt.Appendf(nil, "metalplugctl %s\n%s %s\n%s", version,
		unix.ByteSliceToString(kernel.Release[:]), unix.ByteSliceToString(kernel.Machine[:]), system), err)
}

// write writes the masked files to a new archive that only the user can read.
func (b *bugReport) write(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	packed := gzip.NewWriter(f)
	archive := tar.NewWriter(packed)
	for _, file := range b.files {
		text := b.recorder.Mask(file.text)
		header := &tar.Header{Name: path.Join("metalplug", file.name), Mode: 0o600, Size: int64(len(text)), ModTime: time.Now()}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write([]byte(text)); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), packed.Close(), f.Close())
}
