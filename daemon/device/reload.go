// SPDX-License-Identifier: Apache-2.0

package device

// This file checks whether a container can still use its devices after "systemctl daemon-reload".
//
// Container runtimes with systemd's cgroup driver pass each node to systemd as /dev/char/MAJOR:MINOR or
// /dev/block/MAJOR:MINOR. If that link does not exist, they omit the node (opencontainers/cgroups, devices/systemd.go). They
// also set the kernel's device rules directly, so the node works until systemd applies its own list. From then on, the
// container cannot open the device. udevd creates these links for all nodes that it knows. A node that a vendor's program
// creates has no link.

import (
	"fmt"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// reloadWarning lists the nodes without the link that systemd needs, or returns "". The device is still offered, because it
// works until the next daemon-reload. Other device plugins have the same problem.
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

// number returns the name of a device node's number below /dev, such as "char/195:0" or "block/259:1". It returns "" if
// name is not a device node.
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
