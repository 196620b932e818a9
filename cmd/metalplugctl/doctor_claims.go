// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/config"
)

// driverProgram is where the package metalplug-dra installs its program.
const driverProgram = "/usr/sbin/metalplug-dra"

// checkClaims checks the driver for Dynamic Resource Allocation if a resource has serve = "dra", and otherwise adds no finding.
// systemd removes the driver's sockets when the driver stops, so a missing socket means that the driver is not running. The
// driver does not run as root, so it can send claims to metalplugd only through the claims socket. The driver reports its
// identity in the status line of its unit. If the driver cannot publish the devices, this line ends with the reason.
func (d *doctor) checkClaims() (fine string) {
	if !slices.ContainsFunc(d.config.Resources, func(r config.Resource) bool { return r.Serve == config.ServeDRA }) {
		return ""
	}
	if !d.exists(driverProgram) {
		d.fail("apt-get install metalplug-dra; or dnf install metalplug-dra", "%s is missing: no pod gets a device through a claim", driverProgram)
		return ""
	}
	unit := d.show(d.ctx, "metalplug-dra.service")
	if state := unit["SubState"]; state == "auto-restart" || state == "failed" {
		d.fail("journalctl -u metalplug-dra -e", "metalplug-dra fails to start")
		return ""
	}
	d.checkSocket(filepath.Join(d.config.Paths.PodResources, "../../plugins_registry/metalplug.io-reg.sock"), "metalplug-dra is not running", startDriver)
	d.checkSocket(filepath.Join(d.config.Paths.Run, "claims.sock"), "metalplugd accepts no claims from metalplug-dra",
		"systemctl restart metalplugd, which starts metalplugd-claims.socket; if that fails: journalctl -u metalplugd-claims.socket -e")
	who, problem, _ := strings.Cut(unit["StatusText"], "; ")
	if problem != "" {
		d.fail(renewIdentity, "metalplug-dra %s: %s", who, problem)
		return ""
	}
	return "metalplug-dra " + cmp.Or(who, "is running")
}

// showUnit returns the properties SubState and StatusText of a unit. Without systemd, showUnit returns no properties.
func showUnit(ctx context.Context, unit string) map[string]string {
	out, _ := exec.CommandContext(ctx, "systemctl", "show", "--property=SubState,StatusText", unit).Output()
	properties := make(map[string]string)
	for line := range strings.SplitSeq(string(out), "\n") {
		name, value, _ := strings.Cut(line, "=")
		properties[name] = value
	}
	return properties
}

// startDriver contains the command that starts the driver, and the command that shows why the driver does not start.
const startDriver = "systemctl enable --now metalplug-dra; if that fails: journalctl -u metalplug-dra -e"

// renewIdentity contains the commands that help if the API server refuses the slices.
const renewIdentity = "if the identity has expired or is refused: create a token for this node as metalplug-dra(8) describes, then " +
	"systemctl restart metalplug-dra; if the Node is not found: systemctl restart kubelet; if DRAConsumableCapacity is off: enable this " +
	"feature gate in the API server and the scheduler, then systemctl restart metalplug-dra; otherwise: journalctl -u metalplug-dra -e"
