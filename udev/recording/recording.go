// SPDX-License-Identifier: Apache-2.0

// Package recording stands in for the hardware of another machine, from the text that umockdev-record writes of it.
//
// A recording is a list of blocks, separated by blank lines, one for each device:
//
//	P: /devices/pci0000:00/0000:00:02.0/nvme/nvme0     begins a device: its path below /sys
//	N: nvme0[=HEX]                                     its node below /dev, with its content
//	S: disk/by-id/nvme-abc                             another name of the node, a link below /dev
//	E: SUBSYSTEM=nvme                                  a property of udev's
//	A: model=Blank Disk\n                              an attribute: a file in sysfs, escaped as in C
//	H: config=86800A54                                 an attribute that is not text
//	L: driver=../../../bus/pci/drivers/nvme            an attribute that is a link
//	# a comment
//
// A line of ours, which umockdev does not know, may stand anywhere:
//
//	F: /proc/swaps=Filename\tType\n                    a file below /proc or /dev that belongs to no device
//	F: /proc/4242/                                     a directory there
//
// The other lines of udevadm's export (M: R: J: U: T: D: I: Q: V: B: and a link priority) say nothing that the
// properties do not, and are passed over, as is DEVPATH. Unlike umockdev, a path may begin with /module/ too.
//
// Nothing is made up: what a recording does not hold, such as a NUMA node, the tree does not have. What sysfs and udev
// themselves derive from the rest is added: uevent, dev, the links of subsystem, class, bus, driver and IOMMU group,
// the links of /dev/block and /dev/char.
package recording

import (
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// Recording is the parsed form of a text. It is immutable and safe for concurrent use.
type Recording struct {
	devices []*device // sorted by path: parents come before their children
	files   []file
}

// device is one block. Its attributes are parts of the text that was parsed; what the embedded Device holds is not, so
// that who keeps one does not keep the text.
type device struct {
	udev.Device
	path    string // below /sys, "/devices/…"
	uevent  string // the attribute of that name, as the kernel would write it
	node    string // below /dev, "nvme0"; empty: none
	content string // of the node
	links   []string
	attrs   []attr // sorted by name
	line    int    // of P:
}

type attr struct {
	name, value string
	link        bool
	line        int
}

// file is what F: says; a directory's path ends in "/".
type file struct {
	path, text string
	line       int
}

// Devices lists the devices, parents before their children. The properties are shared, not to be written.
func (r *Recording) Devices() []udev.Device {
	devices := make([]udev.Device, len(r.devices))
	for i, d := range r.devices {
		devices[i] = d.Device
	}
	return devices
}

// Write makes the tree of the recording: root/sys, root/dev and root/proc. The directory root is made where it is
// missing, and should be empty.
func (r *Recording) Write(root string) error {
	to, err := r.tree()
	if err != nil {
		return err
	}
	for _, dir := range []string{"sys", "dev", "proc"} {
		if err := os.MkdirAll(path.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	return apply(root, newTree(), to)
}

// With returns the recording with another value of an attribute, which need not have been there.
func (r *Recording) With(sysPath, name, value string) (*Recording, error) {
	i := r.find(sysPath)
	if i < 0 {
		return nil, fmt.Errorf("set %s/%s: no such device in the recording", sysPath, name)
	}
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("set %s/%s: %w", sysPath, name, err)
	}
	changed := *r.devices[i]
	changed.attrs = slices.DeleteFunc(slices.Clone(changed.attrs), func(a attr) bool { return a.name == name })
	changed.attrs = append(changed.attrs, attr{name: name, value: value})
	sortAttrs(changed.attrs)
	devices := slices.Clone(r.devices)
	devices[i] = &changed
	return (&Recording{devices, r.files}).checked()
}

// Without returns the recording without the device at sysPath and those below it.
func (r *Recording) Without(sysPath string) *Recording {
	devices := slices.DeleteFunc(slices.Clone(r.devices), func(d *device) bool {
		return d.SysPath == sysPath || strings.HasPrefix(d.SysPath, sysPath+"/")
	})
	return &Recording{devices, r.files}
}

// Plus returns the recording with what another one holds as well; that takes the place of what has the same path.
func (r *Recording) Plus(other *Recording) (*Recording, error) {
	devices := r.byPath()
	maps.Copy(devices, other.byPath())
	files := slices.DeleteFunc(slices.Clone(r.files), func(f file) bool {
		return slices.ContainsFunc(other.files, func(o file) bool { return o.path == f.path })
	})
	sum := &Recording{slices.Collect(maps.Values(devices)), append(files, other.files...)}
	sum.sort()
	return sum.checked()
}

func (r *Recording) find(sysPath string) int {
	return slices.IndexFunc(r.devices, func(d *device) bool { return d.SysPath == sysPath })
}

func (r *Recording) byPath() map[string]*device {
	devices := make(map[string]*device, len(r.devices))
	for _, d := range r.devices {
		devices[d.path] = d
	}
	return devices
}

func (r *Recording) sort() {
	slices.SortStableFunc(r.devices, func(a, b *device) int { return strings.Compare(a.path, b.path) })
}

// checked returns the recording if a tree can be made of it.
func (r *Recording) checked() (*Recording, error) {
	if _, err := r.tree(); err != nil {
		return nil, err
	}
	return r, nil
}

func sortAttrs(attrs []attr) {
	slices.SortStableFunc(attrs, func(a, b attr) int { return strings.Compare(a.name, b.name) })
}
