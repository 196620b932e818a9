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

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/control"
)

// checkConfiguration reads the file that the daemon would read at its next start or reload, which is not always the one
// that holds.
func (d *doctor) checkConfiguration() []finding {
	const check = "configuration"
	c, err := config.Load(d.file)
	if err == nil {
		err = c.Check()
	}
	if err != nil {
		return fail(check, "correct it, then: systemctl reload-or-restart metalplugd", "%v", err)
	}
	if len(c.Files) == 0 {
		return ok(check, "there is no file: the defaults hold")
	}
	return ok(check, "%s", strings.Join(c.Files, ", "))
}

// checkDaemon asks the daemon for what the other checks need.
func (d *doctor) checkDaemon() []finding {
	const check = "daemon"
	var status control.Status
	err := d.client.Get(d.ctx, "/v1/status", &status)
	if err == nil {
		err = d.client.Get(d.ctx, "/v1/devices", &d.devices)
	}
	if err != nil {
		return fail(check, "systemctl status metalplugd; journalctl -u metalplugd -e; start it: systemctl start metalplugd", "%v", err)
	}
	d.status = &status
	found := ok(check, "%s, up %s", status.Version, age(time.Duration(status.Uptime*float64(time.Second))))
	if !status.Ready {
		found = warn(check, "wait; if it stays so: journalctl -u metalplugd -e", "it has not looked at the hardware yet")
	}
	found = append(found, d.reloaded(status)...)
	for _, file := range status.Unwritten {
		found = append(found, fail("files", "give it room, or the permission to write there: it tries again by itself", "%s", file)...)
	}
	return found
}

// reloaded compares the configuration that holds with the one in the files, as far as the daemon tells of it. The kubelet's
// directory is from here on the one that the daemon uses.
func (d *doctor) reloaded(status control.Status) (found []finding) {
	const check = "reload"
	if problem := status.Configuration.Problem; problem != "" {
		found = fail(check, "correct it, then: systemctl reload metalplugd",
			"the last one was refused, the old configuration holds: %s", problem)
	}
	for _, pending := range status.Configuration.Pending {
		found = append(found, warn(check, restart, "it took over only a part of the configuration: %s", pending)...)
	}
	now, next := status.DevicePlugins, d.config.Paths.DevicePlugins
	if now == "" || now == next {
		return found
	}
	d.config.Paths.DevicePlugins = now
	told := slices.ContainsFunc(status.Configuration.Pending, func(p string) bool { return strings.HasPrefix(p, "paths.device_plugins ") })
	if len(d.config.Files) > 0 && !told { // else the file cannot be used, or there is none
		found = append(found, warn("paths", restart, "paths.device_plugins is %s from the next start on, and %s until then", next, now)...)
	}
	return found
}

// recordingSource is what the source of a daemon begins with whose hardware is a recording.
const recordingSource = "recording:"

// recorded tells whether the hardware of the daemon is none of this machine's.
func (d *doctor) recorded() bool {
	return d.status != nil && strings.HasPrefix(d.status.Source, recordingSource)
}

// checkUdev looks at udevd by the files that it keeps in /run/udev: control is there while it runs, queue while it has
// something to do (systemd, src/udev/udev-ctrl.c and udev-manager.c).
func (d *doctor) checkUdev() []finding {
	const check = "udev"
	if d.recorded() {
		return foreign(check)
	}
	if _, err := os.Lstat(d.path("/run/udev/control")); err != nil {
		return fail(check, "systemctl start systemd-udevd", "udevd is not running: no event of any hardware comes")
	}
	if _, err := os.Lstat(d.path("/run/udev/queue")); err == nil {
		return warn(check, "udevadm settle; what hangs: journalctl -u systemd-udevd -e", "udevd has events that it has not worked off")
	}
	if d.status == nil {
		return ok(check, "udevd is running")
	}
	e := d.status.Events
	found := ok(check, "%s", eventLine(e, time.Now()))
	if e.Foreign > 0 || e.Malformed > 0 {
		found = append(found, warn(check, "find out who sends to netlink group 2: journalctl -u metalplugd -e",
			"%d messages were not from udevd, %d made no sense", e.Foreign, e.Malformed)...)
	}
	return found
}

// checkHelpers looks for the sockets of the helpers, as far as a resource needs them: without metalplug-reset no disk is
// proven to be empty, without metalplug-holders no device is proven to be free.
func (d *doctor) checkHelpers() []finding {
	const check = "helper sockets"
	if d.recorded() {
		return foreign(check)
	}
	var found []finding
	for _, helper := range []struct {
		unit, socket, without string
		needs                 func(config.Resource) bool
	}{
		{"metalplug-holders", d.config.Reset.Holders, "no container is started with a device", func(r config.Resource) bool {
			return r.Shares <= 1 && !r.AllowInUse
		}},
		{"metalplug-reset", d.config.Reset.Socket, "no disk is offered, and nothing is reset", func(r config.Resource) bool {
			byItself := r.Class.Name == "nvme" || r.Class.Name == "fpga" // also where nothing is configured
			return byItself || r.Reset.Method != config.None && r.Reset.Method != config.Auto || r.Reset.Scrub != config.None
		}},
		{"metalplug-unit", d.config.Reset.Units, "no unit of [resource.units] runs", func(r config.Resource) bool {
			return len(r.Units.Names()) > 0
		}},
	} {
		if helper.socket == config.Direct || !slices.ContainsFunc(d.config.Resources, helper.needs) {
			continue
		}
		info, err := os.Stat(d.path(helper.socket))
		switch {
		case errors.Is(err, fs.ErrPermission):
			found = append(found, skip(check, d.unread(err, ""), "%s: permission denied", helper.socket)...)
		case err != nil || info.Mode().Type() != fs.ModeSocket:
			found = append(found, fail(check, "systemctl restart metalplugd, which starts "+helper.unit+".socket",
				"there is no socket %s: %s", helper.socket, helper.without)...)
		}
	}
	if len(found) == 0 {
		return ok(check, "all that are needed are there")
	}
	return found
}

// checkUnits asks systemd for the units of the configuration. The daemon cannot: systemd's socket is not in its sandbox. Without
// a unit in the configuration there is nothing to say.
func (d *doctor) checkUnits() []finding {
	const check = "units"
	templates := d.config.Templates()
	switch {
	case len(templates) == 0:
		return nil
	case d.units == nil:
		return skip(check, "see whether there are "+strings.Join(templates, ", "), "systemd does not run here")
	}
	unusable, err := d.units(d.ctx, templates...)
	if err != nil {
		return skip(check, d.unread(err, "systemctl list-unit-files "+strings.Join(templates, " ")), "%v", err)
	}
	var found []finding
	for _, unit := range unusable {
		remedy := "install it, then: systemctl daemon-reload"
		if unit.Masked {
			remedy = "systemctl unmask " + unit.Template
		}
		found = append(found, fail(check, remedy+"; or take it out of [resource.units]", "%s: what it is to do is not done", unit)...)
	}
	if len(found) == 0 {
		return ok(check, "%s", strings.Join(templates, ", "))
	}
	return found
}

// checkDevices looks at the devices themselves. A default resource without devices is no fault: most machines have no
// FPGA. A cordoned device is as somebody wants it, but that somebody may have forgotten it.
func (d *doctor) checkDevices() []finding {
	const check = "devices"
	if d.status == nil {
		return silent(check)
	}
	var found []finding
	for _, r := range d.status.Resources {
		if r.Healthy+r.Unhealthy == 0 && !r.Optional {
			found = append(found, warn(check, "metalplugctl list --all; then for the one you expect: metalplugctl why",
				"%s: there is no device", r.Name)...)
		}
	}
	found = append(found, d.ailing(check)...)
	found = append(found, d.withheld(check)...)
	switch total := d.status.Devices; {
	case len(found) > 0:
		return found
	case total.Healthy+total.Unhealthy == 0:
		return warn(check, "metalplugctl list --all shows these; what the kernel sees: lspci -k",
			"none is offered; %d are seen and not offered", total.NotOffered)
	default:
		return ok(check, "%d healthy", total.Healthy)
	}
}

// ailing are the devices that are offered and not as somebody would want them: one finding for each reason.
func (d *doctor) ailing(check string) (found []finding) {
	type kind struct{ level, text string }
	var kinds []kind
	of := make(map[kind][]control.Device)
	for _, v := range d.devices {
		k := kind{levelWarn, ": " + v.Warning}
		switch {
		case v.Resource == "":
			continue
		case v.Cordoned:
			k.text = " is " + reasonOf(v)
		case v.Health != "Healthy":
			k = kind{levelFail, " is unhealthy: " + v.Reason}
		case v.Warning == "":
			continue
		}
		if of[k] == nil {
			kinds = append(kinds, k)
		}
		of[k] = append(of[k], v)
	}
	for _, k := range kinds {
		first, more := of[k][0], len(of[k])-1
		f := finding{Level: k.level, Check: check, Text: first.ID + k.text, Remedy: "metalplugctl why " + first.ID}
		switch {
		case first.Cordoned:
			f.Remedy = "ask who did it; then: metalplugctl uncordon " + first.ID
		case k.level == levelFail:
			f.Remedy = cmp.Or(remedy(first.Reason), f.Remedy)
		}
		if more > 0 {
			f.Text += fmt.Sprintf(" (and %d more like it: metalplugctl list)", more)
		}
		found = append(found, f)
	}
	return found
}
