// SPDX-License-Identifier: Apache-2.0

package reset

// This file finds the device that a request names and checks its identity.

import (
	"errors"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// find checks that the requested device exists and has the expected kind and identity. The parameter "ignored" lists attributes
// to skip. find checks the class only if it is "nvme". The helper compares any other class with the configuration before it
// changes the device.
func (t *task) find(ignored ...string) error {
	if err := t.checkPath(t.SysPath); err != nil {
		return err
	}
	subsystem := t.Link(t.SysPath, "subsystem")
	if t.Class == "nvme" && (subsystem != "block" || !t.IsNVMe(t.SysPath)) {
		return errorf(Refused, "%s is not an nvme device: its subsystem is %s", t.SysPath, subsystem)
	}
	if subsystem == "block" {
		if err := t.checkWholeDisk(t.SysPath); err != nil {
			return err
		}
	}
	return t.checkIdentity(ignored...)
}

// checkPath checks that a path belongs to a device and contains neither a link nor "..".
func (h *host) checkPath(sysPath string) error {
	if !strings.HasPrefix(sysPath, devices) || path.Clean(sysPath) != sysPath {
		return errorf(Refused, "%q is not the path of a device below %s", sysPath, devices)
	}
	if !h.Present(sysPath) {
		return errorf(Gone, "%s does not exist", sysPath)
	}
	if real := h.Resolve(sysPath); real != sysPath {
		return errorf(Refused, "%s is a link: it leads to %s", sysPath, real)
	}
	if !h.Present(sysPath + "/subsystem") {
		return errorf(Refused, "%s is not a device: the path has no subsystem", sysPath)
	}
	return nil
}

func (h *host) isDisk(sysPath string) bool { return h.Link(sysPath, "subsystem") == "block" }

// checkWholeDisk checks that a block device is a disk rather than a partition or a single path to a multipath disk.
func (h *host) checkWholeDisk(sysPath string) error {
	switch {
	case h.Present(sysPath + "/partition"):
		return errorf(Refused, "%s is a partition, but only whole disks are reset and erased", sysPath)
	case h.Uint(sysPath, "hidden") != 0:
		return errorf(Refused, "%s is one of several paths to a disk; name the disk itself", sysPath)
	case h.Properties(sysPath)["DEVTYPE"] != "disk":
		return errorf(Refused, "%s is not a disk", sysPath)
	}
	return nil
}

// checkIdentity checks that all attributes in the request have the expected values. The parameter "ignored" lists attributes to
// skip.
func (t *task) checkIdentity(ignored ...string) error {
	for _, name := range slices.Sorted(maps.Keys(t.Identity)) {
		if !isAttribute(name) {
			return errorf(Refused, "%q is not the name of an attribute", name)
		}
		if slices.Contains(ignored, path.Base(name)) {
			continue
		}
		real := t.Resolve(t.SysPath + "/" + name)
		if real == "" {
			return errorf(Gone, "%s has no attribute %s", t.SysPath, name)
		}
		if !strings.HasPrefix(real, devices) {
			return errorf(Refused, "attribute %s of %s is not an attribute of a device", name, t.SysPath)
		}
		value, err := t.Attr(path.Dir(real), path.Base(real))
		if err != nil {
			return err
		}
		if want := t.Identity[name]; value == "" || value != strings.TrimSpace(want) {
			return errorf(Refused, "%s is not the requested device: %s is %q, not %q", t.SysPath, name, value, want)
		}
	}
	return nil
}

// anyAppearance is the attribute to ignore if the disk may have disappeared and reappeared.
const anyAppearance = "diskseq"

// isAttribute reports whether a name is a valid name for an attribute of a device, or of a parent device as in "device/serial".
func isAttribute(name string) bool {
	for range 2 {
		name = strings.TrimPrefix(name, "device/")
	}
	const chars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
	return name != "" && name[0] != '.' && strings.Trim(name, chars) == ""
}

// openDevice opens a device's node. openDevice checks the node's device number, because the name in /dev may belong to another
// device. The error is [Busy] if the kernel reports that the device is busy.
func (h *host) openDevice(sysPath string, flags int) (fd int, err error) {
	number, err := h.Attr(sysPath, "dev")
	if err != nil {
		return -1, err
	}
	node := h.DevNode(sysPath)
	if node == "" {
		return -1, errorf(Refused, "%s has no node", sysPath)
	}
	fd, err = h.open(h.Path(node), flags)
	if err != nil {
		return -1, openError(node, err)
	}
	is := h.node(fd)
	if is.number == number && is.block == h.isDisk(sysPath) {
		return fd, nil
	}
	h.close(fd)
	return -1, errorf(Refused, "%s is not the node of %s, which has the number %s", node, path.Base(sysPath), number)
}

// errClaimed means that a process or the kernel itself has the disk open exclusively. The kernel does not report which process.
var errClaimed = errors.New("cannot be opened exclusively: it is mounted, part of another device, or open elsewhere")

// openError returns the error for an errno that open(2) returned for a node.
func openError(node string, err error) error {
	switch err {
	case unix.EBUSY:
		return errorf(Busy, "%s %w", node, errClaimed)
	case unix.EAGAIN: // nvme_dev_open returns this for a controller that is not live
		return errorf(Busy, "%s is being reset", node)
	case unix.ENOENT, unix.ENODEV, unix.ENXIO, unix.ENOMEDIUM:
		return errorf(Gone, "open %s: %w", node, err)
	}
	return errorf(Failed, "open %s: %w", node, err)
}

// This part finds the NVMe namespaces that a request affects. Package sysfs describes how namespaces relate to controllers.

// controllersOf returns the sysfs paths of a namespace's controllers.
func (h *host) controllersOf(sysPath string) ([]string, error) {
	if !h.IsNVMe(sysPath) {
		return nil, errorf(Refused, "%s is not an NVMe namespace", sysPath)
	}
	controllers := h.NVMeControllers(sysPath)
	if len(controllers) == 0 {
		return nil, errorf(Gone, "no controller reaches %s", sysPath)
	}
	return controllers, nil
}

// namespacesOf returns the disks that the given controllers reach. The error is [Refused] if a namespace has no disk, such as a
// key-value namespace, because its users are then unknown.
func (h *host) namespacesOf(controllers []string) (disks []string, err error) {
	tree := h.Recording(&err)
	for _, c := range controllers {
		found, without := tree.NVMeNamespaces(c)
		if len(without) > 0 {
			return nil, errorf(Refused, "cannot determine whether %s, which has no disk, is used", path.Base(without[0]))
		}
		disks = append(disks, found...)
	}
	if err != nil {
		return nil, errorf(Busy, "cannot determine which disks share a controller: %w", err)
	}
	slices.Sort(disks)
	return slices.Compact(disks), nil
}
