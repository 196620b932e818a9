// SPDX-License-Identifier: Apache-2.0

package sysfs

// This file finds the NVMe namespaces, controllers and subsystems that belong together.
//
// Follows: drivers/nvme/host/core.c, sysfs.c and multipath.c. Without native multipathing, a namespace is a disk below its
// controller. With native multipathing, the disk is called the head, and is below the subsystem in /sys/devices/virtual.
// Each path to the head is a hidden disk below a controller.
//
// Names alone do not show which devices belong together. A disk's name contains the subsystem's number (nvme_alloc_ns). A generic
// node's name contains the controller's number (nvme_add_ns_cdev). These two numbers differ if an open node keeps an earlier
// subsystem alive. Only the number after the last n is the same in all names, because it is the namespace's number within its
// subsystem (head->instance). The parent devices identify the subsystem and the controller.

import (
	"path"
	"slices"
	"strings"
)

const (
	nvmeClass          = "nvme"
	nvmeSubsystemClass = "nvme-subsystem"
	nvmeGenericClass   = "nvme-generic"
)

// IsNVMe reports whether the block device at sysPath is an NVMe namespace.
func (t *Tree) IsNVMe(sysPath string) bool {
	return slices.Contains([]string{nvmeClass, nvmeSubsystemClass}, t.Link(path.Dir(sysPath), "subsystem"))
}

// NVMeControllers returns the controllers that have access to the namespace at sysPath, or nil for any other device.
func (t *Tree) NVMeControllers(sysPath string) []string {
	above := path.Dir(sysPath)
	switch t.Link(above, "subsystem") {
	case nvmeClass:
		return []string{above}
	case nvmeSubsystemClass:
		return slices.DeleteFunc(members(t, above), func(controller string) bool {
			return !slices.ContainsFunc(children(t, controller, "block"), func(p string) bool { return isPath(t, p, sysPath) })
		})
	}
	return nil
}

// children returns the sysfs paths of those entries in a directory that belong to one of the given kernel subsystems.
func children(t *Tree, dir string, classes ...string) (found []string) {
	for _, name := range t.Names(dir) {
		if p := dir + "/" + name; slices.Contains(classes, t.Link(p, "subsystem")) {
			found = append(found, p)
		}
	}
	return found
}

// members returns the controllers of a subsystem. The subsystem has a link to each of its controllers (nvme_init_subsystem).
func members(t *Tree, subsystem string) (controllers []string) {
	for _, link := range children(t, subsystem, nvmeClass) {
		if c := t.Resolve(link); c != "" {
			controllers = append(controllers, c)
		}
	}
	return controllers
}

// NVMeSiblings returns all controllers in a controller's subsystem, including the controller itself.
func (t *Tree) NVMeSiblings(controller string) []string {
	if subsystem := subsystemOf(t, controller); subsystem != "" {
		return members(t, subsystem)
	}
	return []string{controller}
}

// subsystemOf returns the subsystem that has a link to a controller, or "" if there is none.
func subsystemOf(t *Tree, controller string) string {
	const class = "/sys/class/" + nvmeSubsystemClass
	for _, name := range t.Names(class) {
		if s := t.Resolve(class + "/" + name); s != "" && slices.Contains(members(t, s), controller) {
			return s
		}
	}
	return ""
}

// isPath reports whether a disk below a controller is hidden and serves as a path to a head.
func isPath(t *Tree, disk, head string) bool {
	return t.Uint(disk, "hidden") != 0 && sameNamespace(t, disk, head)
}

// sameNamespace reports whether two devices in the same subsystem represent the same namespace. sameNamespace compares the
// attributes nsid and wwid if both devices have them. The nsid alone is not sufficient, because controllers may have private
// namespaces with the same ID. Generic nodes have neither attribute, so sameNamespace compares the numbers in their names.
func sameNamespace(t *Tree, a, b string) bool {
	compared := false
	for _, name := range []string{"nsid", "wwid"} {
		of, errA := t.Attr(a, name)
		other, errB := t.Attr(b, name)
		if errA != nil || errB != nil || of == "" || other == "" {
			continue
		}
		if of != other {
			return false
		}
		compared = true
	}
	return compared || instanceOf(a) == instanceOf(b)
}

// instanceOf returns the number after the last n in a namespace's name, such as 2 for nvme3n2, nvme3c0n2 and ng4n2.
func instanceOf(sysPath string) string {
	name := path.Base(sysPath)
	return name[strings.LastIndexByte(name, 'n')+1:]
}

// NVMeNamespaces returns the disks that a controller reaches, without duplicates. For a path to a head, NVMeNamespaces returns
// the head. The second result lists the namespaces for which the kernel has no disk, such as key-value namespaces.
func (t *Tree) NVMeNamespaces(controller string) (disks, without []string) {
	for _, d := range children(t, controller, "block", nvmeGenericClass) {
		if t.Link(d, "subsystem") == nvmeGenericClass {
			if siblingOf(t, d, "block") == "" {
				without = append(without, d)
			}
			continue
		}
		heads := headsOf(t, controller, d)
		if len(heads) == 0 {
			without = append(without, d)
		}
		disks = append(disks, heads...)
	}
	slices.Sort(disks)
	return slices.Compact(disks), without
}

// headsOf returns all possible heads of a disk below a controller. If the disk is hidden, it is a path to one of these heads. A
// disk that is not hidden is its own head.
func headsOf(t *Tree, controller, disk string) []string {
	if t.Uint(disk, "hidden") == 0 {
		return []string{disk}
	}
	subsystem := subsystemOf(t, controller)
	if subsystem == "" {
		return nil
	}
	return slices.DeleteFunc(children(t, subsystem, "block"), func(head string) bool { return !isPath(t, disk, head) })
}

// NVMeGeneric returns the generic device of a namespace, such as ".../nvme4/ng4n2" for ".../nvme4/nvme3n2", or "" if there is
// none. Both devices have the same parent.
func (t *Tree) NVMeGeneric(sysPath string) string { return siblingOf(t, sysPath, nvmeGenericClass) }

// siblingOf returns the device of the given kernel subsystem that has the same parent and represents the same namespace as the
// device at sysPath, or "" if there is none.
func siblingOf(t *Tree, sysPath, subsystem string) string {
	for _, p := range children(t, path.Dir(sysPath), subsystem) {
		if t.Uint(p, "hidden") == 0 && sameNamespace(t, p, sysPath) {
			return p
		}
	}
	return ""
}

// nvmeNodes returns the controllers that reach the namespace at sysPath, and all other devices that represent this namespace.
// nvmeNodes returns nil for a device that is not a namespace.
func nvmeNodes(t *Tree, sysPath string) (found []string) {
	if class := t.Link(sysPath, "subsystem"); class != "block" && class != nvmeGenericClass {
		return nil
	}
	parent := path.Dir(sysPath)
	dirs := []string{parent}
	switch t.Link(parent, "subsystem") {
	case nvmeClass:
		dirs = t.NVMeSiblings(parent)
	case nvmeSubsystemClass:
		dirs = append(dirs, members(t, parent)...)
	default:
		return nil
	}
	for _, dir := range dirs {
		reaches := dir == parent
		for _, p := range children(t, dir, "block", nvmeGenericClass) {
			if !sameNamespace(t, p, sysPath) {
				continue
			}
			reaches = true
			if p != sysPath && t.Uint(p, "hidden") == 0 { // hidden disks are paths and have no node
				found = append(found, p)
			}
		}
		if reaches && t.Link(dir, "subsystem") == nvmeClass {
			found = append(found, dir)
		}
	}
	return found
}
