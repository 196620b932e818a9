// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/pseudofs"
)

// Host is the machine whose devices are looked at: the one seam between the classes and the kernel. Its methods take
// the names that the kernel uses ("/sys/devices/…", "/dev/…", "/proc/…"), wherever the trees really are.
type Host struct {
	Sys  string // where sysfs is, "/sys"
	Dev  string // where the device nodes are, "/dev"
	Proc string // where procfs is, "/proc"
	Touch

	Holds  func(id string) bool // tells whether a pod holds a device; nil: none does
	Erases func(id string) bool // tells whether a disk is offered whatever is on it, since that will be erased; nil: none is
}

// Path returns where a path of the kernel's ("/sys/…", "/dev/…", "/proc/…") is to be found.
func (h *Host) Path(name string) string {
	for _, tree := range [...]struct{ prefix, root string }{{"/sys", h.Sys}, {"/dev", h.Dev}, {"/proc", h.Proc}} {
		if rest, ok := strings.CutPrefix(name, tree.prefix); ok && (rest == "" || rest[0] == '/') {
			return filepath.Join(tree.root, rest)
		}
	}
	return name
}

// Present tells whether a path of the kernel's exists; a link counts without what it points to.
func (h *Host) Present(name string) bool {
	var found unix.Stat_t
	err := unix.Lstat(h.Path(name), &found)
	for err == unix.EINTR {
		err = unix.Lstat(h.Path(name), &found)
	}
	return err == nil
}

// stat tells what a path of the kernel's leads to. Unlike os.Stat it makes no garbage but the path: each look asks for
// dozens.
func (h *Host) stat(name string) (found unix.Stat_t, err error) {
	err = unix.Stat(h.Path(name), &found)
	for err == unix.EINTR {
		err = unix.Stat(h.Path(name), &found)
	}
	return found, err
}

// Instance returns a number that tells what is at a sysfs path from what was there before, within a boot: that of the
// directory, which the kernel gives to no other for a long time (kernfs_new_node, fs/kernfs/dir.c). 0: nothing is there.
func (h *Host) Instance(sysPath string) uint64 {
	found, err := h.stat(sysPath)
	if err != nil {
		return 0
	}
	return found.Ino
}

// Exists tells whether what a path of the kernel's leads to exists.
func (h *Host) Exists(name string) bool {
	_, err := h.stat(name)
	return err == nil
}

// Attr reads an attribute of the device at sysPath, without surrounding blanks. The error is [ErrGone] if the device or
// the attribute is not there.
func (h *Host) Attr(sysPath, name string) (string, error) { return h.Read(sysPath + "/" + name) }

// Read returns the beginning, one page, of a file in sysfs or procfs, without surrounding blanks.
func (h *Host) Read(name string) (string, error) {
	text, err := pseudofs.ReadStart(h.Path(name), pseudofs.AttrSize)
	if err != nil {
		return "", readError(name, err)
	}
	return strings.TrimSpace(text), nil
}

// ReadAll returns the whole of a file in procfs, such as mountinfo, which is longer than a page.
func (h *Host) ReadAll(name string) (string, error) {
	f, err := os.Open(h.Path(name))
	if err != nil {
		return "", readError(name, err)
	}
	defer f.Close()
	all, err := io.ReadAll(f)
	if err != nil {
		return "", readError(name, err)
	}
	return string(all), nil
}

func readError(name string, err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		err = fmt.Errorf("%w: %w", ErrGone, err)
	}
	return fmt.Errorf("read %s: %w", name, err)
}

// Int reads an attribute that holds a number, decimal or with the prefix 0x.
func (h *Host) Int(sysPath, name string) (int64, error) {
	text, err := h.Attr(sysPath, name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s/%s: %q is not a number", sysPath, name, text)
	}
	return n, nil
}

// Link returns the last element of what a link in sysfs points to, such as the name of the driver; empty if it is not
// there.
func (h *Host) Link(sysPath, name string) string {
	target, err := os.Readlink(h.Path(sysPath + "/" + name))
	if err != nil {
		return ""
	}
	return path.Base(target)
}

// Resolve returns the sysfs path that a link in sysfs leads to, such as "device"; empty if it is not there.
func (h *Host) Resolve(name string) string {
	real, err := filepath.EvalSymlinks(h.Path(name))
	if err != nil {
		return ""
	}
	sys, err := filepath.EvalSymlinks(h.Sys)
	if err != nil {
		return ""
	}
	rest, ok := strings.CutPrefix(real, sys+"/")
	if !ok {
		return ""
	}
	return "/sys/" + rest
}

// Names lists a directory in sysfs, procfs or /dev, sorted; nothing if it is not there.
func (h *Host) Names(dir string) []string {
	entries, err := os.ReadDir(h.Path(dir))
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// Properties returns what the kernel itself reports of the device at sysPath (its attribute "uevent"): DRIVER,
// PCI_SLOT_NAME, MAJOR and the like.
func (h *Host) Properties(sysPath string) map[string]string {
	text, err := h.Attr(sysPath, "uevent")
	if err != nil {
		return nil
	}
	properties := make(map[string]string)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			properties[key] = value
		}
	}
	return properties
}

// PCIParent returns the sysfs path of the nearest PCI function at or above sysPath; empty if there is none.
func (h *Host) PCIParent(sysPath string) string {
	if h.Link(sysPath, "subsystem") == "pci" {
		return sysPath
	}
	for above := range parents(sysPath) {
		if h.Link(above, "subsystem") == "pci" {
			return above
		}
	}
	return ""
}

// NUMANode returns the NUMA node of the device at sysPath or of the nearest device above it that has one; -1 if none
// has, or if that node is not online. The kubelet refuses nodes that it does not know.
func (h *Host) NUMANode(sysPath string) int {
	node := h.numaAttr(sysPath)
	for above := range parents(sysPath) {
		if node >= 0 {
			break
		}
		node = h.numaAttr(above)
	}
	if node >= 0 && h.Present("/sys/devices/system/node") && !h.Present(fmt.Sprintf("/sys/devices/system/node/node%d", node)) {
		return -1
	}
	return node
}

func (h *Host) numaAttr(sysPath string) int {
	n, err := h.Int(sysPath, "numa_node")
	if err != nil {
		return -1
	}
	return int(n)
}

// Node returns the node name for a container: in the container its usual name, on the host the first of the links that
// leads to it, so that the name still means the same device after a reboot. Not being there is [ErrIncomplete].
func (h *Host) Node(name string, links ...string) (Node, error) {
	target, err := h.stat(name)
	if err != nil {
		return Node{}, incompletef("%s is missing", name)
	}
	n := Node{Host: name, Container: name}
	i := slices.IndexFunc(links, func(link string) bool {
		found, err := h.stat(link)
		return err == nil && found.Dev == target.Dev && found.Ino == target.Ino
	})
	if i >= 0 {
		n.Host = links[i]
	}
	return n, nil
}

// Number returns the name below /dev by which a device node goes by its number, "char/195:0" or "block/259:1"; empty: the
// name leads to no device node.
func (h *Host) Number(name string) string {
	found, err := h.stat(name)
	if err != nil {
		return ""
	}
	number := uint64(found.Rdev) // its type differs between architectures
	switch found.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		return fmt.Sprintf("char/%d:%d", unix.Major(number), unix.Minor(number))
	case unix.S_IFBLK:
		return fmt.Sprintf("block/%d:%d", unix.Major(number), unix.Minor(number))
	}
	return ""
}

// parents yields the sysfs paths above sysPath, nearest first, down to those directly below /sys/devices.
func parents(sysPath string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for p := path.Dir(sysPath); strings.HasPrefix(p, "/sys/devices/"); p = path.Dir(p) {
			if !yield(p) {
				return
			}
		}
	}
}
