// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// devices is where the kernel keeps all devices.
const devices = sysfs.Devices

// host is the machine, with the seam to its kernel. Its methods take the names that the kernel uses ("/sys/devices/…",
// "/dev/…", "/proc/…"), wherever the trees really are.
type host struct {
	sysfs.Tree
	kernel
	step step

	run      string                        // where udevd keeps its state, in the directory udev
	locks    string                        // the directory of the lock files
	settings func() (config.Config, error) // reads the configuration
	selects  func(Request) error           // refuses a device that no resource selects
	// holders asks which processes have devices open.
	holders func(context.Context, config.Config, []cgroup.Number) (cgroup.Answer, error)
}
