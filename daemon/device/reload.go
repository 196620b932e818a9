// SPDX-License-Identifier: Apache-2.0

package device

// Whether a container would keep its devices through "systemctl daemon-reload".
//
// Container runtimes that use systemd's cgroup driver name each node to systemd as /dev/char/MAJOR:MINOR or
// /dev/block/MAJOR:MINOR, and leave it out where that does not exist (opencontainers/cgroups, devices/systemd.go). They set
// the kernel's rule themselves, so all is well until systemd applies its own list again. Then the container loses the device.
// udevd makes these links for all nodes that it knows of. Nodes that a vendor's program makes have no link.

import (
	"fmt"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// reloadWarning returns which nodes lack the link by which systemd would know them, or "". It is not a reason to hold a
// device back. The device works until the next daemon-reload, with any device plugin.
func reloadWarning(h *Host, a Allocation) string {
	var without []string
	for _, n := range a.Nodes {
		number := h.number(n.Host)
		if number != "" && h.number("/dev/"+number) != number {
			without = append(without, fmt.Sprintf("%s has no link /dev/%s", n.Container, number))
		}
	}
	if len(without) == 0 {
		return ""
	}
	return strings.Join(without, ", ") + ": systemctl daemon-reload would take it from running containers"
}

// number returns the name below /dev of a device node by its number, "char/195:0" or "block/259:1". It returns "" if the name
// does not lead to a device node.
func (h *Host) number(name string) string {
	found, err := h.Stat(name)
	switch number, block := sysfs.Number(found); {
	case err != nil || number == "":
		return ""
	case block:
		return "block/" + number
	default:
		return "char/" + number
	}
}
