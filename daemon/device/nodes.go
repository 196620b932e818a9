// SPDX-License-Identifier: Apache-2.0

package device

// This file finds a device's nodes, and udev's links to them.

import (
	"path"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// recipe collects everything that a container needs for a device. After the first error, nothing more is added. The nodes that
// were added before the error exist, but are not sufficient for a container.
type recipe struct {
	*Host
	Allocation
	err error // [ErrIncomplete] with the missing node, or nil
}

// allocate returns the nodes and variables that a container needs for a device.
func (d Device) allocate(h *Host) (Allocation, error) {
	r := recipe{Host: h}
	d.Class.Allocate(&r, d)
	return r.Allocation, r.err
}

// fail records the first error.
func (r *recipe) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// add adds a node that the container requires. The path in the container is the node's usual name. The path on the host is the
// first of the given links that points to the node, because a link still identifies the same device after a reboot. If no link
// points to the node, the path on the host is the usual name. If the node is missing, the recipe gets an [ErrIncomplete] error.
func (r *recipe) add(name string, links ...string) {
	target, err := r.Stat(name)
	if err != nil {
		r.fail(incompletef("%s is missing", name))
		return
	}
	n := Node{Host: name, Container: name}
	i := slices.IndexFunc(links, func(link string) bool {
		found, err := r.Stat(link)
		return err == nil && found.Dev == target.Dev && found.Ino == target.Ino
	})
	if i >= 0 {
		n.Host = links[i]
	}
	if r.err == nil && !slices.Contains(r.Nodes, n) {
		r.Nodes = append(r.Nodes, n)
	}
}

// addOptional adds an optional node if it exists.
func (r *recipe) addOptional(name string) {
	if r.Present(name) {
		r.add(name)
	}
}

// addDRM adds the nodes of DRM devices, such as "card0" or "renderD128". The host path is the link that udev's 60-drm.rules
// create for a PCI function, if this link exists.
func (r *recipe) addDRM(function string, names ...string) {
	for _, name := range names {
		kind := "-render"
		if sysfs.IsNumbered(name, "card") {
			kind = "-card"
		}
		r.add("/dev/dri/"+name, "/dev/dri/by-path/pci-"+path.Base(function)+kind)
	}
}

// linksIn returns udev's links to the node of u in directories with one of the given names, such as "by-id". The links are in the
// same order as these names.
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
