// SPDX-License-Identifier: Apache-2.0

package device

// This file checks whether a container can still use its devices after a "systemctl daemon-reload".
//
// Container runtimes with systemd's cgroup driver pass each node to systemd as /dev/char/MAJOR:MINOR or /dev/block/MAJOR:MINOR.
// The runtimes omit a node if this link does not exist (opencontainers/cgroups, devices/systemd.go). The runtimes also set the
// kernel's device rules directly, so the node works until systemd applies its own list, after which the container can no longer
// open it. udevd creates this link for each device that it knows. udevd does not know a device whose node was created by a
// vendor's program, so this node has no link.

import (
	"fmt"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// reloadWarning returns a warning that lists the nodes without the link that systemd needs. reloadWarning returns "" if all nodes
// have this link. The device is offered despite the warning, because it works until the next daemon-reload.
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

// number returns the path of systemd's link to a device node, relative to /dev, such as "char/195:0" or "block/259:1". number
// returns "" if the file with the given name is not a device node.
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
