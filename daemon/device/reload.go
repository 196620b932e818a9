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
)

// reloadWarning returns which nodes lack the link by which systemd would know them, or "". It is not a reason to hold a
// device back. The device works until the next daemon-reload, with any device plugin.
func reloadWarning(h *Host, a Allocation) string {
	var without []string
	for _, n := range a.Nodes {
		number := h.Number(n.Host)
		if number != "" && h.Number("/dev/"+number) != number {
			without = append(without, fmt.Sprintf("%s has no link /dev/%s", n.Container, number))
		}
	}
	if len(without) == 0 {
		return ""
	}
	return strings.Join(without, ", ") + ": systemctl daemon-reload would take it from running containers"
}
