// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/metalplug/metalplug/daemon/config"
)

// driverProgram is the program of the package metalplug-dra.
const driverProgram = "/usr/sbin/metalplug-dra"

// checkClaims checks the driver for Dynamic Resource Allocation, if a resource has serve = "dra". Without such a resource
// there is no finding. systemd removes the driver's sockets when the driver stops, so a missing socket means that the driver
// does not run. The driver's user may send claims only through the socket for claims.
func (d *doctor) checkClaims() (fine string) {
	if recorded(d.status) || !slices.ContainsFunc(d.config.Resources, func(r config.Resource) bool { return r.Serve == config.ServeDRA }) {
		return ""
	}
	if !d.exists(driverProgram) {
		d.fail("apt-get install metalplug-dra; or dnf install metalplug-dra", "%s is missing: no pod gets a device through a claim", driverProgram)
		return ""
	}
	root := filepath.Dir(filepath.Dir(d.config.Paths.PodResources))
	for _, needed := range []struct{ socket, without, remedy string }{
		{filepath.Join(root, "plugins_registry", "metalplug.io-reg.sock"), "metalplug-dra is not running", startDriver},
		{filepath.Join(root, "plugins", "metalplug.io", "dra.sock"), "metalplug-dra is not running", startDriver},
		{
			filepath.Join(d.config.Paths.Run, "claims.sock"), "metalplugd accepts no claim of metalplug-dra",
			"systemctl restart metalplugd, which starts metalplugd-claims.socket; if it fails: journalctl -u metalplugd-claims.socket -e",
		},
	} {
		info, err := os.Stat(d.path(needed.socket))
		switch {
		case errors.Is(err, fs.ErrPermission):
			d.skip(d.readRemedy(err, ""), "%s: permission denied", needed.socket)
		case err != nil || info.Mode().Type() != fs.ModeSocket:
			d.fail(needed.remedy, "there is no socket %s: %s", needed.socket, needed.without)
		}
	}
	return "metalplug-dra is running"
}

// startDriver starts the driver, or shows why it does not run.
const startDriver = "systemctl enable --now metalplug-dra; if it fails: journalctl -u metalplug-dra -e"
