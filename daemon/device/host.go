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
)

// Host is the machine whose devices are looked at: the one seam between the classes and the kernel. Its methods take
// the names that the kernel uses ("/sys/devices/…", "/dev/…", "/proc/…"), wherever the trees really are.
type Host struct {
	Sys  string // where sysfs is, "/sys"
	Dev  string // where the device nodes are, "/dev"
	Proc string // where procfs is, "/proc"
}

// attrSize is the most that is read of one attribute: sysfs gives a page (Documentation/filesystems/sysfs.rst).
const attrSize = 4096

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
	_, err := os.Lstat(h.Path(name))
	return err == nil
}

// Exists tells whether what a path of the kernel's leads to exists.
func (h *Host) Exists(name string) bool {
	_, err := os.Stat(h.Path(name))
	return err == nil
}

// Attr reads an attribute of the device at sysPath, without surrounding blanks. The error is [ErrGone] if the device or
// the attribute is not there.
func (h *Host) Attr(sysPath, name string) (string, error) { return h.Read(sysPath + "/" + name) }

// Read returns the beginning, one page, of a file in sysfs or procfs, without surrounding blanks.
func (h *Host) Read(name string) (string, error) {
	// One plain read, past the Go poller: some drivers answer EAGAIN, after which os.ReadFile would wait for ever.
	fd, err := unix.Open(h.Path(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", readError(name, err)
	}
	defer unix.Close(fd)
	buf := make([]byte, attrSize)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return "", readError(name, err)
	}
	return strings.TrimSpace(string(buf[:n])), nil
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
	target, err := filepath.EvalSymlinks(h.Path(name))
	if err != nil {
		return Node{}, incompletef("%s is missing", name)
	}
	n := Node{Host: name, Container: name}
	i := slices.IndexFunc(links, func(link string) bool {
		real, err := filepath.EvalSymlinks(h.Path(link))
		return err == nil && real == target
	})
	if i >= 0 {
		n.Host = links[i]
	}
	return n, nil
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
