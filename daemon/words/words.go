// SPDX-License-Identifier: Apache-2.0

// Package words says of a device, in as few words as a table has room for, what the programs show of it.
package words

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// First names the first of several nodes and how many more there are; "-" where there is none.
func First(nodes []string) string {
	switch len(nodes) {
	case 0:
		return "-"
	case 1:
		return nodes[0]
	}
	return fmt.Sprintf("%s +%d", nodes[0], len(nodes)-1)
}

// NUMA is a NUMA node; "-" where none is known, which is -1.
func NUMA(node int) string {
	if node < 0 {
		return "-"
	}
	return strconv.Itoa(node)
}

// PCI is the address of a PCI function without the domain, where that is the one that most machines have; "-" where there
// is none.
func PCI(address string) string {
	if address == "" {
		return "-"
	}
	return strings.TrimPrefix(address, "0000:")
}

// Short leaves out of a sysfs path what is the same for all devices: the host bridge and the bridges below it, down to
// the last PCI function.
func Short(sysPath string) string {
	elements := strings.Split(strings.TrimPrefix(sysPath, "/sys/devices/"), "/")
	for i := len(elements) - 1; i > 0; i-- {
		if strings.Count(elements[i], ":") == 2 {
			return path.Join(elements[i:]...)
		}
	}
	return path.Join(elements...)
}
