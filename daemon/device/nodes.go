// SPDX-License-Identifier: Apache-2.0

package device

// The nodes of a device and the links that udev makes to them.

import (
	"path"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// recipe collects what a container needs of a device. After the first error it adds nothing more. The nodes that were found
// before identify the device, but are not enough for a container.
type recipe struct {
	*Host
	Allocation
	err error // [ErrIncomplete] names what is missing, or nil
}

// allocate finds the nodes and variables that a container needs of a device.
func (d Device) allocate(h *Host) (Allocation, error) {
	r := recipe{Host: h}
	d.Class.Allocate(&r, d)
	return r.Allocation, r.err
}

// fail notes the first error.
func (r *recipe) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// add adds a node that the container cannot do without. In the container it has its usual name. On the host it has the first of
// the links that leads to it, which means the same device after a reboot. Not being there is [ErrIncomplete].
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

// addIfThere adds a node that a container can do without.
func (r *recipe) addIfThere(name string) {
	if r.Present(name) {
		r.add(name)
	}
}

// addDRM adds the nodes of DRM devices, "card0" or "renderD128", on the host by the links of udev's 60-drm.rules to those of a
// PCI function.
func (r *recipe) addDRM(function string, names ...string) {
	for _, name := range names {
		kind := "-render"
		if sysfs.Numbered(name, "card") {
			kind = "-card"
		}
		r.add("/dev/dri/"+name, "/dev/dri/by-path/pci-"+path.Base(function)+kind)
	}
}

// linksIn returns the links that udev made to the node of u in a directory with one of the names, such as "by-id". The links
// in the directories of the first name come first.
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
