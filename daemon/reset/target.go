// SPDX-License-Identifier: Apache-2.0

package reset

// Finding the device that a request is about, and making sure that it is that one.

import (
	"errors"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// find makes sure that the device which a request names is there, what it is and which one it is. ignored are attributes of
// its identity that do not count. Which class but nvme it is of, the configuration says before anything is done to it.
func (t *task) find(ignored ...string) error {
	if err := t.resolved(t.SysPath); err != nil {
		return err
	}
	subsystem := t.Link(t.SysPath, "subsystem")
	if t.Class == "nvme" && (subsystem != "block" || !t.IsNVMe(t.SysPath)) {
		return errorf(Refused, "%s is no nvme device: its subsystem is %s", t.SysPath, subsystem)
	}
	if subsystem == "block" {
		if err := t.wholeDisk(t.SysPath); err != nil {
			return err
		}
	}
	return t.identified(ignored...)
}

// resolved checks that a path is that of a device, without any link or way up in it.
func (h *host) resolved(sysPath string) error {
	if !strings.HasPrefix(sysPath, devices) || path.Clean(sysPath) != sysPath {
		return errorf(Refused, "%q is not the path of a device below %s", sysPath, devices)
	}
	if !h.Present(sysPath) {
		return errorf(Gone, "%s is not there", sysPath)
	}
	if real := h.Resolve(sysPath); real != sysPath {
		return errorf(Refused, "%s is a link: it leads to %s", sysPath, real)
	}
	if !h.Present(sysPath + "/subsystem") {
		return errorf(Refused, "%s is not a device: it has no subsystem", sysPath)
	}
	return nil
}

func (h *host) isDisk(sysPath string) bool { return h.Link(sysPath, "subsystem") == "block" }

// wholeDisk checks that a block device is a disk, not a partition and not one of the paths that make up a disk.
func (h *host) wholeDisk(sysPath string) error {
	switch {
	case h.Present(sysPath + "/partition"):
		return errorf(Refused, "%s is a partition: only whole disks are reset and erased", sysPath)
	case h.Uint(sysPath, "hidden") != 0:
		return errorf(Refused, "%s is one of several paths to a disk: name the disk", sysPath)
	case h.Properties(sysPath)["DEVTYPE"] != "disk":
		return errorf(Refused, "%s is no disk", sysPath)
	}
	return nil
}

// identified checks that the attributes by which the request knows the device read just so, but for the ignored ones.
func (t *task) identified(ignored ...string) error {
	for _, a := range t.Identity {
		if !attributeName.MatchString(a.Name) {
			return errorf(Refused, "%q is not the name of an attribute", a.Name)
		}
		if slices.Contains(ignored, path.Base(a.Name)) {
			continue
		}
		real := t.Resolve(t.SysPath + "/" + a.Name)
		if real == "" {
			return errorf(Gone, "%s has no attribute %s", t.SysPath, a.Name)
		}
		if !strings.HasPrefix(real, devices) {
			return errorf(Refused, "attribute %s of %s is none of a device", a.Name, t.SysPath)
		}
		value, err := t.Attr(path.Dir(real), path.Base(real))
		if err != nil {
			return err
		}
		if value == "" || value != strings.TrimSpace(a.Value) {
			return errorf(Refused, "%s is another device than meant: %s is %q, not %q", t.SysPath, a.Name, value, a.Value)
		}
	}
	return nil
}

// anyAppearance, as an attribute that does not count, lets a disk have appeared again.
const anyAppearance = "diskseq"

// attributeName is the name of an attribute of a device or of the one it is part of ("device/serial").
var attributeName = regexp.MustCompile(`^(device/){0,2}[A-Za-z0-9_-][A-Za-z0-9_.-]*$`)

// opened opens the node of a device and makes sure that it is the node of that device. It compares the number, for a name in
// /dev proves nothing. The error is [Busy] where the kernel says so.
func (h *host) opened(sysPath string, flags int) (fd int, err error) {
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
	if err := h.isNode(fd, node, number, h.isDisk(sysPath)); err != nil {
		h.close(fd)
		return -1, err
	}
	return fd, nil
}

func (h *host) isNode(fd int, name, number string, block bool) error {
	is, err := h.node(fd)
	if err != nil {
		return errorf(Refused, "look at %s: %w", name, err)
	}
	if is.number != number || is.block != block {
		return errorf(Refused, "%s is the node of another device: %s, not %s", name, is.number, number)
	}
	return nil
}

// errClaimed means that the kernel reports a claim on a disk, and not of whom.
var errClaimed = errors.New("cannot be opened exclusively: it is mounted, or part of something, or open")

// openError makes an error of what open(2) says of a node.
func openError(node string, err error) error {
	switch err {
	case unix.EBUSY:
		return errorf(Busy, "%s %w", node, errClaimed)
	case unix.EAGAIN: // nvme_dev_open, of a controller that is not live
		return errorf(Busy, "%s is being reset", node)
	case unix.ENOENT, unix.ENODEV, unix.ENXIO, unix.ENOMEDIUM:
		return errorf(Gone, "open %s: %w", node, err)
	}
	return errorf(Failed, "open %s: %w", node, err)
}

// NVMe namespaces that a request hits. See package sysfs for their topology.

// controllersOf returns the sysfs paths of the controllers that reach a namespace.
func (h *host) controllersOf(sysPath string) ([]string, error) {
	if !h.IsNVMe(sysPath) {
		return nil, errorf(Refused, "%s is no NVMe namespace", sysPath)
	}
	controllers := h.NVMeControllers(sysPath)
	if len(controllers) == 0 {
		return nil, errorf(Gone, "no controller reaches %s", sysPath)
	}
	return controllers, nil
}

// namespacesOf returns the disks behind controllers. A namespace without a disk, such as one of key-value pairs, is [Refused],
// as its use cannot be told.
func (h *host) namespacesOf(controllers []string) (disks []string, err error) {
	for _, c := range controllers {
		found, without := h.NVMeNamespaces(c)
		if len(without) > 0 {
			return nil, errorf(Refused, "whether %s, which has no disk, is used cannot be told", path.Base(without[0]))
		}
		disks = append(disks, found...)
	}
	slices.Sort(disks)
	return slices.Compact(disks), nil
}
