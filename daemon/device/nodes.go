// SPDX-License-Identifier: Apache-2.0

package device

// The nodes of a device and the links that udev makes to them.

import (
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// add finds a node that the container cannot do without, on the host by the first of the links that leads to it. Not
// being there is [ErrIncomplete].
func (a *Allocation) add(h *Host, name string, links ...string) error {
	node, err := h.Node(name, links...)
	if err != nil {
		return err
	}
	a.Nodes = append(a.Nodes, node)
	return nil
}

// linksIn returns those of the links that udev made to the node of u which lie in a directory of one of the names, such
// as "by-id": those of the first name first.
func linksIn(u udev.Device, directories ...string) []string {
	var links []string
	for _, directory := range directories {
		for link := range strings.FieldsSeq(u.Properties.Value("DEVLINKS")) {
			if strings.Contains(link, "/"+directory+"/") {
				links = append(links, link)
			}
		}
	}
	return links
}
