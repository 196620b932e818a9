// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

const (
	// configSize is the number of recorded bytes of PCI configuration space. This is the size of the header, which the kernel
	// caches (PCI_STD_HEADER_SIZEOF).
	configSize = 64
	// attrDepth is the maximum depth of a recorded attribute below its device. The deepest known attributes are those in
	// InfiniBand's "ports/1/gid_attrs/ndevs/0".
	attrDepth = 5
)

// Recorder writes recordings of a machine. The format is that of umockdev-record, with additional lines for files in /proc and
// nodes in /dev, which begin with F. A Recorder needs no privileges, but if it does not run as root, the recording lacks the
// files that only root can read.
type Recorder struct {
	sysfs.Tree
	Serials bool // whether to keep serial numbers and other identities instead of replacing them

	secrets secrets // identities that the recorder has found, or that were passed to Hide
}

// Hide makes the recorder mask the given texts in addition to the identities that it finds.
func (r *Recorder) Hide(texts ...string) {
	if r.secrets == nil {
		r.secrets = make(secrets)
	}
	for _, text := range texts {
		r.secrets.add(text)
	}
}

// Mask replaces each recorded or hidden identity in a text, in the same way as in the recording.
func (r *Recorder) Mask(text string) string {
	if r.Serials {
		return text
	}
	return r.secrets.mask(text)
}

// Record returns the text of a recording. The text contains the devices with their attributes, and the files in /proc and /dev
// that show how the devices are used. A device that vanishes during the recording is omitted. Record may block for some time,
// because the kernel reads some attributes from the hardware.
func (r *Recorder) Record(devices []udev.Device) string {
	var text strings.Builder
	r.Hide()
	sorted := slices.SortedFunc(slices.Values(devices), func(a, b udev.Device) int { return strings.Compare(a.SysPath, b.SysPath) })
	for _, d := range sorted {
		r.writeDevice(&text, d)
	}
	r.recordFiles(&text, sorted)
	return r.Mask(text.String())
}

// writeDevice writes the part of the recording that describes one device.
func (r *Recorder) writeDevice(text *strings.Builder, d udev.Device) {
	devPath := strings.TrimPrefix(d.SysPath, "/sys")
	if !strings.HasPrefix(devPath, "/devices/") && !strings.HasPrefix(devPath, "/module/") {
		return // Parse derives buses and drivers from the links in their devices
	}
	fmt.Fprintf(text, "P: %s\n", devPath)
	if d.DevNode != "" {
		fmt.Fprintf(text, "N: %s\n", strings.TrimPrefix(d.DevNode, "/dev/"))
	}
	for link := range strings.FieldsSeq(d.Properties.Value("DEVLINKS")) {
		fmt.Fprintf(text, "S: %s\n", strings.TrimPrefix(link, "/dev/"))
	}
	for key, value := range d.Properties.All() {
		switch key {
		case "DEVNAME", "DEVLINKS", "USEC_INITIALIZED", "ACTION", "SEQNUM":
			continue // this property is redundant, or valid only for a moment
		}
		if strings.ContainsAny(key+value, "\n\x00") {
			continue
		}
		r.secrets.property(key, value)
		fmt.Fprintf(text, "E: %s=%s\n", key, value)
	}
	r.writeAttrs(text, d.SysPath, "", attrDepth)
	text.WriteString("\n")
}

// recordFiles adds to the recording what classes read outside sysfs. This includes the tables of mounts and swap space, the
// reports of NVIDIA's driver, and NVIDIA's nodes, which udev does not know.
func (r *Recorder) recordFiles(text *strings.Builder, devices []udev.Device) {
	write := func(name, content string) { fmt.Fprintf(text, "F: %s=%s\n", name, escape(content)) }
	for _, name := range []string{"/proc/1/mountinfo", "/proc/self/mountinfo"} {
		if content, err := r.ReadAll(name); err == nil {
			write(name, diskMounts(content, devices))
		}
	}
	if content, err := r.ReadAll("/proc/swaps"); err == nil {
		write("/proc/swaps", content)
	}
	for _, pattern := range []string{
		"gpus/*/information", "capabilities/mig/*", "capabilities/gpu*/mig/gi*/access", "capabilities/gpu*/mig/gi*/ci*/access",
	} {
		found, _ := filepath.Glob(filepath.Join(r.Proc, "driver/nvidia", pattern)) // Glob fails only for an invalid pattern
		for _, file := range found {
			name := "/proc" + strings.TrimPrefix(file, r.Proc)
			if content, err := r.ReadAll(name); err == nil {
				r.secrets.text(content)
				write(name, content)
			}
		}
	}
	for _, pattern := range []string{"nvidia*", "nvidia-caps/*"} {
		found, _ := filepath.Glob(filepath.Join(r.Dev, pattern))
		for _, file := range found {
			if info, err := os.Stat(file); err == nil && !info.IsDir() {
				write("/dev"+strings.TrimPrefix(file, r.Dev), "")
			}
		}
	}
}

// diskMounts returns the lines of mountinfo that are about block devices. No class needs the other lines, which would reveal
// users' paths.
func diskMounts(mountinfo string, devices []udev.Device) string {
	numbers := make(map[string]bool)
	for _, d := range devices {
		if d.Subsystem == "block" {
			numbers[d.Properties.Value("MAJOR")+":"+d.Properties.Value("MINOR")] = true
		}
	}
	var kept strings.Builder
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line) // id, parent, major:minor, root, mount point, …
		if len(fields) > 4 && (numbers[fields[2]] || strings.Contains(line, " /dev/")) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}
