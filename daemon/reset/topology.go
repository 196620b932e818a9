// SPDX-License-Identifier: Apache-2.0

package reset

// Which disks hang together: NVMe namespaces by their controllers and subsystem.
//
// Follows: drivers/nvme/host/core.c, sysfs.c and multipath.c. Without native multipathing a namespace is a disk below its
// controller. With it the disk is below the subsystem, in /sys/devices/virtual, and each path to it is a hidden disk below
// a controller.

import (
	"path"
	"slices"
	"strings"
)

// controllersOf returns the sysfs paths of the controllers that reach a namespace.
func (h *host) controllersOf(sysPath string) ([]string, error) {
	above := path.Dir(sysPath)
	switch h.link(above, "subsystem") {
	case "nvme":
		return []string{above}, nil
	case "nvme-subsystem":
	default:
		return nil, errorf(Refused, "%s is no NVMe namespace", sysPath)
	}
	var controllers []string
	for _, c := range h.membersOf(above) {
		if h.exists(c + "/" + pathName(path.Base(sysPath), path.Base(c))) {
			controllers = append(controllers, c)
		}
	}
	if len(controllers) == 0 {
		return nil, errorf(Gone, "no controller reaches %s", sysPath)
	}
	return controllers, nil
}

// membersOf returns the controllers of a subsystem, which has a link to each.
func (h *host) membersOf(subsystem string) (controllers []string) {
	for _, name := range h.names(subsystem) {
		if c := h.resolve(subsystem + "/" + name); h.link(c, "subsystem") == "nvme" {
			controllers = append(controllers, c)
		}
	}
	return controllers
}

// pathName returns what the path of a disk over a controller is called: nvme3n1 over nvme0 is nvme3c0n1 (nvme_alloc_ns).
func pathName(disk, controller string) string {
	n := strings.LastIndexByte(disk, 'n')
	if n < 0 {
		return ""
	}
	return disk[:n] + "c" + strings.TrimPrefix(controller, "nvme") + disk[n:]
}

// headName is the other way round: of nvme3c0n1 the disk is nvme3n1.
func headName(hidden string) string {
	c, n := strings.LastIndexByte(hidden, 'c'), strings.LastIndexByte(hidden, 'n')
	if c < 0 || n < c {
		return ""
	}
	return hidden[:c] + hidden[n:]
}

// siblings returns the controllers of the subsystem that a controller belongs to, itself included.
func (h *host) siblings(controller string) []string {
	const class = "/sys/class/nvme-subsystem"
	for _, name := range h.names(class) {
		if members := h.membersOf(h.resolve(class + "/" + name)); slices.Contains(members, controller) {
			return members
		}
	}
	return []string{controller}
}

// namespacesOf returns the disks behind controllers. A namespace without a disk, such as one of key-value pairs, is
// [Refused]: nobody can tell whether it is used.
func (h *host) namespacesOf(controllers []string) (disks []string, err error) {
	for _, c := range controllers {
		for _, name := range h.names(c) {
			d := c + "/" + name
			switch h.link(d, "subsystem") {
			case "nvme-generic":
				if disk := "nvme" + strings.TrimPrefix(name, "ng"); !h.exists(c + "/" + disk) {
					return nil, errorf(Refused, "whether %s, which has no disk, is used cannot be told", name)
				}
			case "block":
				if h.number(d, "hidden") != 0 {
					d = h.resolve("/sys/block/" + headName(name))
				}
				if d == "" {
					return nil, errorf(Refused, "of %s there is no disk", name)
				}
				disks = append(disks, d)
			}
		}
	}
	slices.Sort(disks)
	return slices.Compact(disks), nil
}

// vouched checks that every disk that will be hit is the request's own or one that it lists.
func (r Request) vouched(hit []string) error {
	for _, d := range hit {
		if d != r.SysPath && !slices.Contains(r.Together, d) {
			return errorf(Refused, "%s would be hit too: nobody vouches that no pod has it", path.Base(d))
		}
	}
	return nil
}
