// SPDX-License-Identifier: Apache-2.0

package reset

import (
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
}
