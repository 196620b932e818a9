// SPDX-License-Identifier: Apache-2.0

// Package sysfs reads the kernel's files. These are attributes and links of sysfs, and the files of sysfs, procfs and configfs
// that show who uses a block device. The daemon and the helper that opens device nodes share it, so both give one answer.
// It opens no device node and makes no ioctl.
//
// Follows Documentation/filesystems/sysfs.rst.
package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/internal/fsutil"
)

// ErrGone says that the device, or the attribute, is not there.
var ErrGone = errors.New("gone")

// AttrSize is the size of the largest attribute in bytes. The kernel gives one page.
const AttrSize = 4096

// Devices is where the kernel keeps all devices. The rest of sysfs has links to there.
const Devices = "/sys/devices/"

// Tree is where the kernel's files are. Its methods take the names that the kernel uses ("/sys/devices/…", "/dev/…",
// "/proc/…") and look below the three directories. The zero value has all of them in /.
type Tree struct {
	Sys  string // where sysfs is, "/sys"
	Dev  string // where the device nodes are, "/dev"
	Proc string // where procfs is, "/proc"
}

// At returns the tree with the three directories below root. An empty root is that of this process.
func At(root string) Tree { return Tree{Sys: root + "/sys", Dev: root + "/dev", Proc: root + "/proc"} }

type prefixed struct{ prefix, root string }

func (t *Tree) roots() [3]prefixed {
	return [3]prefixed{{"/sys", t.Sys}, {"/dev", t.Dev}, {"/proc", t.Proc}}
}

// Path returns the place in this tree of a path of the kernel's ("/sys/…", "/dev/…", "/proc/…").
func (t *Tree) Path(name string) string {
	for _, r := range t.roots() {
		if rest, ok := strings.CutPrefix(name, r.prefix); ok && (rest == "" || rest[0] == '/') {
			return filepath.Join(r.root, rest)
		}
	}
	return name
}

// Present reports whether a path of the kernel's exists. It does not follow a link.
func (t *Tree) Present(name string) bool {
	var found unix.Stat_t
	return unix.Lstat(t.Path(name), &found) == nil
}

// Stat returns the file that a path of the kernel's leads to. Unlike os.Stat it allocates nothing but the path. Each look
// calls it dozens of times.
func (t *Tree) Stat(name string) (found unix.Stat_t, err error) {
	err = unix.Stat(t.Path(name), &found)
	return found, err
}

// ReadStart returns the first bytes of a file, at most size. It makes one plain read, past the Go poller. Some drivers
// answer EAGAIN, and os.ReadFile would wait forever then. It reads no more, because some devices hang when a process reads the
// whole of their configuration space (pci_read_config). The error is [ErrGone] if there is no such file.
func (t *Tree) ReadStart(name string, size int) (string, error) {
	fd, err := unix.Open(t.Path(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", readError(name, err)
	}
	defer unix.Close(fd)
	var page [AttrSize]byte // on the stack, because a look at all devices reads tens of thousands of attributes
	b := page[:]
	if size > len(page) {
		b = make([]byte, size)
	}
	n, err := unix.Read(fd, b[:size])
	if err != nil {
		return "", readError(name, err)
	}
	return string(b[:n]), nil
}

// Read returns the first page of a file in sysfs or procfs, without surrounding blanks.
func (t *Tree) Read(name string) (string, error) {
	text, err := t.ReadStart(name, AttrSize)
	return strings.TrimSpace(text), err
}

// Attr reads an attribute of the device at sysPath, without surrounding blanks. The error is [ErrGone] if the device or
// the attribute is not there.
func (t *Tree) Attr(sysPath, name string) (string, error) { return t.Read(sysPath + "/" + name) }

// ReadAll returns the whole of a file in procfs, such as mountinfo, which is longer than a page.
func (t *Tree) ReadAll(name string) (string, error) {
	all, err := os.ReadFile(t.Path(name))
	if err != nil {
		return "", readError(name, err)
	}
	return string(all), nil
}

func readError(name string, err error) error {
	err = fsutil.Cause(err)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		err = fmt.Errorf("%w: %w", ErrGone, err)
	}
	return fmt.Errorf("read %s: %w", name, err)
}

// Int reads an attribute that holds a number, decimal or with the prefix 0x.
func (t *Tree) Int(sysPath, name string) (int64, error) {
	text, err := t.Attr(sysPath, name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s/%s: %q is not a number", sysPath, name, text)
	}
	return n, nil
}

// Uint reads an attribute that holds a number of at most 63 bits. It returns 0 if the attribute is not there.
func (t *Tree) Uint(sysPath, name string) uint64 {
	n, _ := t.Int(sysPath, name)
	return uint64(max(n, 0))
}

// Link returns the last element of the target of a link in sysfs, such as the name of the driver. It returns "" if the link is
// not there.
func (t *Tree) Link(sysPath, name string) string {
	target, err := os.Readlink(t.Path(sysPath + "/" + name))
	if err != nil {
		return ""
	}
	return path.Base(target)
}

// Resolve returns the kernel's path that a link leads to, such as "device". It returns "" if the link is not there or leads out
// of the tree.
func (t *Tree) Resolve(name string) string {
	real, err := filepath.EvalSymlinks(t.Path(name))
	if err != nil {
		return ""
	}
	for _, r := range t.roots() {
		root, err := filepath.EvalSymlinks(r.root)
		if err != nil {
			continue
		}
		if rest, ok := strings.CutPrefix(real, root+"/"); ok {
			return r.prefix + "/" + rest
		}
	}
	return ""
}

// Names lists a directory in sysfs, procfs or /dev, sorted. A directory that is not there has no names.
func (t *Tree) Names(dir string) []string {
	entries, err := os.ReadDir(t.Path(dir))
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// Properties returns the properties that the kernel itself reports of the device at sysPath in its attribute "uevent", such as
// DRIVER, PCI_SLOT_NAME and MAJOR.
func (t *Tree) Properties(sysPath string) map[string]string {
	text, err := t.Attr(sysPath, "uevent")
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

// DevNode returns the node of the device at sysPath, "/dev/nvme0n1", or "" if it has none.
func (t *Tree) DevNode(sysPath string) string {
	name := t.Properties(sysPath)["DEVNAME"]
	if name == "" || path.Clean("/"+name) != "/"+name {
		return ""
	}
	return "/dev/" + name
}

// Above returns the nearest device of a subsystem at or above sysPath, or "" if there is none.
func (t *Tree) Above(sysPath, subsystem string) string {
	for p := range Up(sysPath) {
		if t.Link(p, "subsystem") == subsystem {
			return p
		}
	}
	return ""
}

// Up yields sysPath and the paths above it, nearest first, up to the one directly below /sys/devices.
func Up(sysPath string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for p := sysPath; strings.HasPrefix(p, Devices) && yield(p); p = path.Dir(p) {
		}
	}
}

// Numbered reports whether name is the prefix and a number, as the kernel numbers devices.
func Numbered(name, prefix string) bool {
	number, ok := strings.CutPrefix(name, prefix)
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}
