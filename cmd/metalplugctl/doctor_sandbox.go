// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
)

// ownUnits are the units that a node with metalplug needs.
var ownUnits = []string{
	"metalplugd.service", "metalplugd-uevent.socket", "metalplugd-control.socket", "metalplug-mounts.service",
	"metalplug-reset.socket", "metalplug-reset@.service", "metalplug-holders.socket", "metalplug-holders@.service",
	"metalplug-unit.socket", "metalplug-unit@.service",
}

// checkSandbox looks for what keeps systemd from starting the units: a masked unit, and a kernel without user namespaces.
// It has no line for a node on which nothing does.
func (d *doctor) checkSandbox() []finding {
	const check = "sandbox"
	if d.recorded() {
		return nil
	}
	var found []finding
	if d.read("/proc/sys/user/max_user_namespaces") == "0" {
		found = append(found, fail(check, "sysctl -w user.max_user_namespaces=1024, and the same in /etc/sysctl.d",
			"user.max_user_namespaces is 0, so PrivateUsers= of metalplugd.service fails (217/USER)")...)
	}
	for _, unit := range ownUnits {
		for _, dir := range []string{"/etc/systemd/system", "/run/systemd/system"} { // as systemctl mask and mask --runtime do
			if to, err := os.Readlink(d.path(filepath.Join(dir, unit))); err == nil && to == "/dev/null" {
				runtime := ""
				if strings.HasPrefix(dir, "/run") {
					runtime = "--runtime "
				}
				found = append(found, fail(check, "systemctl unmask "+runtime+unit, "%s is masked", unit)...)
			}
		}
	}
	return found
}
