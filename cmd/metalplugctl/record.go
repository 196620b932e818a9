// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
	"github.com/metalplug/metalplug/udev/recording"
)

// recordCommand writes a recording. The command reads sysfs without metalplugd, because a bug report is often written when
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
	serials := map[bool]string{true: "kept", false: "replaced"}[r.Serials]
	text := r.Record(relevant(&device.Host{Tree: r.Tree}, c.Rules(), devices))
	return fmt.Sprintf("# Recorded by metalplugctl %s. Serial numbers were %s.\n\n%s", version, serials, text)
}

// extraSubsystems lists subsystems that device classes read, in addition to the subsystems of their own devices.
var extraSubsystems = []string{
	"node", "block", "nvme", "nvme-subsystem", "drm", "accel", "kfd", "infiniband", "infiniband_verbs", "infiniband_mad", "infiniband_cm",
	"fpga_region", "fpga_manager", "dfl", "vfio", "vfio-dev",
}

// moduleDirs lists the sysfs directories of kernel modules. Classes read the parameters of these modules.
var moduleDirs = []string{"/sys/module/nvidia", "/sys/module/amdgpu", "/sys/module/ib_core", "/sys/module/nvme_core"}

// relevant returns the devices that a class uses, their parents, and the devices in the subsystems of extraSubsystems. relevant
// omits RAM disks and unused loop devices.
func relevant(h *device.Host, rules []device.Rule, devices []udev.Device) []udev.Device {
	keep := make(map[string]bool)
	var subjects []string
	for _, d := range devices {
		if slices.Contains(extraSubsystems, d.Subsystem) && !isUnused(h, d) || slices.Contains(moduleDirs, d.SysPath) ||
			mayOffer(d) || len(device.Look(h, rules, &d)) > 0 {
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

// mayOffer reports whether containers may get the node of a udev device. One example is rdma_cm, which all adapters share.
func mayOffer(d udev.Device) bool {
	return d.DevNode != "" && slices.ContainsFunc(device.Classes, func(c *device.Class) bool {
		return c != &device.Generic && udev.Glob(strings.Join(c.DevNodes, "|"), d.DevNode)
	})
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
