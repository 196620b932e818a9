// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// defaultResources offers the disks in addition to the built-in resources. A recording supports no erasure.
const defaultResources = `
[[resource]]
name = "metalplug.io/nvme"
reset.scrub = "none"
`

// Configure writes metalplugd's configuration for its next start or reload. The configuration has the built-in resources and
// the given resources, or the disks if resources is empty.
func (n *Node) Configure(resources string) error {
	source := "recording:/var/hardware/recording"
	if n.options.Disk != "" {
		source = "udev"
	}
	cgroup := "/run/cgroup"
	if n.options.Containerd {
		cgroup = "/sys/fs/cgroup"
	}
	return replace(n.path("var/lib/metalplug.toml"), fmt.Appendf(nil, `hardware.source = %q
paths.cgroup = %q
reset.socket = "direct"
%s`, source, cgroup, cmp.Or(resources, defaultResources)))
}

const (
	// loops is the number of device nodes for loop devices on a node. They exist even if the machine does not have that many
	// loop devices yet.
	loops = 128
	// loopMajor is LOOP_MAJOR of the kernel (include/uapi/linux/major.h).
	loopMajor = 7
)

// attach creates the device node of the disk, with the link that udev creates, and the device nodes of all loop devices.
// metalplugd sees the loop devices of the machine, and checks which disk is below each of them.
func (n *Node) attach() error {
	if n.options.Disk == "" {
		return nil
	}
	for i := range loops {
		file := fmt.Sprintf("/dev/loop%d", i)
		if file == n.options.Disk {
			continue
		}
		if err := unix.Mknod(n.path(file), unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(i)))); err != nil {
			return fmt.Errorf("make device node %s: %w", file, err)
		}
	}
	var disk unix.Stat_t
	if err := unix.Stat(n.options.Disk, &disk); err != nil {
		return fmt.Errorf("look at %s: %w", n.options.Disk, err)
	}
	link := n.path(fmt.Sprintf("dev/block/%d:%d", unix.Major(disk.Rdev), unix.Minor(disk.Rdev)))
	return errors.Join(
		unix.Mknod(n.path(n.options.Disk), unix.S_IFBLK|0o600, int(disk.Rdev)),
		os.MkdirAll(filepath.Dir(link), 0o755),
		os.Symlink(filepath.Join("..", filepath.Base(n.options.Disk)), link))
}

// split simulates two NUMA nodes for the kubelet, which reads /sys/devices/system/node (GetNodesInfo of
// github.com/google/cadvisor/utils/sysinfo).
func (n *Node) split() error {
	for i, distance := range []string{"10 20", "20 10"} {
		dir := n.path(fmt.Sprintf("var/numa/node%d", i))
		cpu := fmt.Sprintf("cpu%d", i)
		if err := errors.Join(
			os.MkdirAll(filepath.Join(dir, "hugepages"), 0o755),
			os.WriteFile(filepath.Join(dir, "distance"), []byte(distance+"\n"), 0o600),
			os.WriteFile(filepath.Join(dir, "meminfo"), fmt.Appendf(nil, "Node %d MemTotal: 4194304 kB\n", i), 0o600),
			os.Symlink("/sys/devices/system/cpu/"+cpu, filepath.Join(dir, cpu))); err != nil {
			return err
		}
	}
	return nil
}

// Plug replaces the hardware of the node with a recording. For metalplugd, the difference looks like added and removed
// devices. Plug also creates the device nodes of the recording, because the container runtime reads their type.
func (n *Node) Plug(recording string) error {
	for _, old := range devices(n.options.Recording) {
		if err := removeMissing(n.path(old.file)); err != nil {
			return err
		}
	}
	n.options.Recording = recording
	for _, d := range devices(recording) {
		if err := os.MkdirAll(filepath.Dir(n.path(d.file)), 0o755); err != nil {
			return err
		}
		if err := unix.Mknod(n.path(d.file), d.mode|0o600, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("make device node %s: %w", d.file, err)
		}
	}
	return replace(n.path("var/hardware/recording"), []byte(recording))
}

// deviceNode is a device node of a recording.
type deviceNode struct {
	file         string // path below the node's root
	mode         uint32 // S_IFBLK or S_IFCHR
	major, minor uint32
}

// nvidiaMajor is the major number of NVIDIA's driver, whose nodes udev does not know.
const nvidiaMajor = 195

// devices returns the device nodes of a recording. Each block of lines has "N: NAME" and the properties. A node that udev does
// not know is a line "F: /dev/NAME=".
func devices(recording string) []deviceNode {
	var all []deviceNode
	for block := range strings.SplitSeq(recording, "\n\n") {
		d := deviceNode{mode: unix.S_IFCHR}
		for line := range strings.Lines(block) {
			line = strings.TrimSpace(line)
			if name, ok := strings.CutPrefix(line, "N: "); ok {
				name, _, _ = strings.Cut(name, "=") // the content of the node may follow the name
				d.file = filepath.Join("dev", name)
			}
			if name, ok := strings.CutPrefix(line, "F: /dev/"); ok {
				name, _, _ = strings.Cut(name, "=")
				all = append(all, deviceNode{file: filepath.Join("dev", name), mode: unix.S_IFCHR, major: nvidiaMajor, minor: uint32(len(all))})
			}
			if line == "E: SUBSYSTEM=block" {
				d.mode = unix.S_IFBLK
			}
			_, _ = fmt.Sscanf(line, "E: MAJOR=%d", &d.major) // other lines do not match, which is not an error
			_, _ = fmt.Sscanf(line, "E: MINOR=%d", &d.minor)
		}
		if d.file != "" && d.major != 0 {
			all = append(all, d)
		}
	}
	return all
}
