// SPDX-License-Identifier: Apache-2.0

package device

// Whether a container would keep its devices through "systemctl daemon-reload".
//
// Container runtimes that use systemd's cgroup driver name each node to systemd as /dev/char/MAJOR:MINOR or
// /dev/block/MAJOR:MINOR, and leave it out where that does not exist (opencontainers/cgroups, devices/systemd.go). They
// set the kernel's rule themselves, so all is well until systemd applies its own list again: then the container has
// lost the device. udevd makes these links for all nodes that it knows of; for those that a vendor's program makes
// nobody does.

import (
	"fmt"
	"strings"
)

// reloadWarning tells which nodes lack the link by which systemd would know them; empty: none. It is no reason to hold
// a device back: it works until then, and where nobody makes the links it has always been so.
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
