// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
)

// checkConfiguration checks the file that metalplugd will read at its next start or reload. The running metalplugd may still
// use an older configuration.
func (d *doctor) checkConfiguration() (fine string) {
	c, err := config.LoadUsable(d.file)
	if err != nil {
		d.fail("correct the configuration, then: systemctl reload-or-restart metalplugd", "%v", err)
	}
	return cmp.Or(strings.Join(c.Files, ", "), "no configuration file: the defaults apply")
}

// ask queries metalplugd for the data that the checks need.
func (d *doctor) ask() error {
	var status api.Status
	err := d.client.Get(d.ctx, "/v1/status", &status)
	if err == nil {
		err = d.client.Get(d.ctx, "/v1/devices", &d.devices)
	}
	if err == nil {
		d.status = &status
	}
	return err
}

// checkDaemon checks that metalplugd answers, is ready, uses the expected configuration, and can write its files.
func (d *doctor) checkDaemon() (fine string) {
	if errors.Is(d.askErr, fs.ErrPermission) {
		d.skip(readRemedy(d.askErr, ""), "%s: permission denied", d.client.Socket)
		return ""
	} else if d.askErr != nil {
		d.fail("systemctl start metalplugd; if that fails: journalctl -u metalplugd -e", "%v", d.askErr)
		return ""
	}
	status := *d.status
	if status.Ready {
		d.pass("%s, up %s", status.Version, formatDuration(time.Duration(status.Uptime*float64(time.Second))))
	} else {
		d.warn("wait; if this persists: journalctl -u metalplugd -e", "metalplugd has not inspected the hardware yet")
	}
	if file := status.Configuration.File; file != "" && !d.isSameDirectory(file, d.file) && !status.Preview {
		d.check = "configuration"
		d.warn("if that is intended: metalplugctl doctor --config FILE", "the daemon reads %q, not %s", file, d.file)
	}
	d.check = "reload"
	if !status.Preview {
		d.checkReload(status)
	}
	d.check = "files"
	for _, file := range status.Unwritten {
		d.fail("free disk space, or make the directory writable; metalplugd retries automatically", "%s", file)
	}
	return ""
}

// checkReload reports a refused reload, and changes to the configuration that take effect only after a restart.
func (d *doctor) checkReload(status api.Status) {
	if problem := status.Configuration.Problem; problem != "" {
		d.fail("correct the configuration, then: systemctl reload metalplugd", "the last reload was refused, so the previous configuration still applies: %s", problem)
	}
	for _, pending := range status.Configuration.Pending {
		d.warn(restartRemedy, "the last reload applied only part of the configuration: %s", pending)
	}
}

// checkUdev finds out from udevd's files in /run/udev whether udevd is running. The file named control exists while udevd runs,
// and the file named queue exists while udevd processes events (systemd, src/udev/udev-ctrl.c and udev-manager.c).
func (d *doctor) checkUdev() (fine string) {
	if !d.exists("/run/udev/control") {
		d.fail("systemctl start systemd-udevd", "udevd is not running, so no hardware event arrives")
		return ""
	}
	if d.exists("/run/udev/queue") {
		d.warn("udevadm settle; if that hangs: journalctl -u systemd-udevd -e", "udevd has unprocessed events")
		return ""
	}
	if d.status == nil {
		return "udevd is running"
	}
	return eventLine(d.status.Events, time.Now())
}

// checkHelpers checks that there is a socket for each helper that the resources need. Without metalplug-reset, metalplugd
// cannot prove that a disk is empty. Without metalplug-holders, metalplugd cannot prove that a device is not in use.
func (d *doctor) checkHelpers() (fine string) {
	for _, helper := range []struct {
		unit, socket, without string
		needs                 func(config.Resource) bool
	}{
		{"metalplug-holders", d.config.Reset.Holders, "no container with a device can start", func(r config.Resource) bool {
			return !r.SharesUse()
		}},
		{"metalplug-reset", d.config.Reset.Socket, "no disk is offered, and nothing is reset", func(r config.Resource) bool {
			byDefault := r.Class == "nvme" || r.Class == "fpga" // metalplug resets devices of these classes by default
			return byDefault || r.Reset.Method != config.None && r.Reset.Method != config.Auto || r.Reset.Scrubs()
		}},
		{"metalplug-unit", d.config.Reset.Units, "no unit of [resource.units] runs", func(r config.Resource) bool {
			return r.Units != config.Units{}
		}},
	} {
		if helper.socket != config.Direct && slices.ContainsFunc(d.config.Resources, helper.needs) {
			d.checkSocket(helper.socket, helper.without, "systemctl restart metalplugd, which starts "+helper.unit+".socket")
		}
	}
	return "all required sockets exist"
}

// checkSocket adds a finding if a file is missing, is not a socket, or cannot be inspected. The parameter "without" describes
// the problem that a missing socket causes. The parameter remedy is a command that creates the socket.
func (d *doctor) checkSocket(name, without, remedy string) {
	info, err := os.Stat(d.path(name))
	switch {
	case errors.Is(err, fs.ErrPermission):
		d.skip(readRemedy(err, ""), "%s: permission denied", name)
	case err != nil:
		d.fail(remedy, "there is no socket %s: %s", name, without)
	case info.Mode().Type() != fs.ModeSocket:
		d.fail("remove the file, or correct its path in the configuration, then: "+remedy, "%s is not a socket: %s", name, without)
	}
}

// checkUnits checks the vendor units in the configuration. metalplugd cannot check the units, because its sandbox hides
// systemd's directories. If there are no vendor units, checkUnits adds no finding.
func (d *doctor) checkUnits() (fine string) {
	templates := d.config.Templates()
	if len(templates) == 0 {
		return ""
	}
	if d.units == nil {
		d.skip("check that the units exist: "+strings.Join(templates, ", "), "systemd is not running")
		return ""
	}
	for _, complaint := range d.units(templates...) {
		d.fail("install or unmask the unit, then: systemctl daemon-reload; or remove the unit from [resource.units]", "metalplug cannot start a vendor unit: %s", complaint)
	}
	return strings.Join(templates, ", ")
}

// checkDevices checks the devices' health. checkDevices does not report a built-in resource that has no device, because most
// nodes lack some kinds of hardware, such as FPGAs. checkDevices does report a cordoned device, because an operator may have
// forgotten the cordon. If several devices have the same problem, a single finding names one of them and counts the others.
func (d *doctor) checkDevices() (fine string) {
	before := len(d.found)
	for _, r := range d.status.Resources {
		if r.Healthy+r.Unhealthy == 0 && !r.Optional {
			d.warn("metalplugctl list --all; to see why a device is missing: metalplugctl why", "%s has no device", r.Name)
		}
	}
	alike := make(map[[2]string]int)
	for _, v := range d.devices {
		level, text := complaint(v)
		alike[[2]string{level, text}]++
	}
	for _, v := range d.devices {
		level, text := complaint(v)
		kind := [2]string{level, text}
		if level == "" || alike[kind] == 0 {
			continue
		}
		name := nameOf(v)
		if more := alike[kind] - 1; more > 0 {
			text += fmt.Sprintf(" (and %d more like it: metalplugctl list --all)", more)
		}
		alike[kind] = 0
		d.note(level, cmp.Or(remedy(v), "metalplugctl why "+name), name+text)
	}
	total := d.status.Devices
	if len(d.found) == before && total.Healthy+total.Unhealthy == 0 {
		d.warn("to see devices that are not offered: metalplugctl list --all; to see PCI devices: lspci -k",
			"no device is offered; devices that are present but not offered: %d", total.NotOffered)
	}
	return fmt.Sprintf("%d healthy", total.Healthy)
}
