// SPDX-License-Identifier: Apache-2.0

// Package sysfs reads attributes and links in sysfs. The package also reads the files in sysfs, procfs and configfs that show how
// a block device is used. The daemon and metalplug-reset share this package, so that both interpret these files in the same way.
// The package does not open device nodes or use ioctls.
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
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/internal/fsutil"
)

// ErrGone means that a device or attribute does not exist.
var ErrGone = errors.New("gone")

// AttrSize is the maximum size of an attribute in bytes. The kernel returns at most one page.
const AttrSize = 4096

// Devices is the directory below which sysfs shows all devices. The other directories in sysfs contain links into it.
const Devices = "/sys/devices/"

// Tree contains the locations of the files that the kernel provides. The methods of Tree accept kernel paths ("/sys/devices/…",
// "/dev/…", "/proc/…") and translate them to these locations. The zero value is not usable, because it would translate
// "/sys/devices" to "/devices".
type Tree struct {
	Sys  string // path of sysfs, "/sys"
	Dev  string // path of the device nodes, "/dev"
	Proc string // path of procfs, "/proc"

	failure *error // see [Tree.Recording], or nil
}

// At returns the tree whose locations are below the directory root, or below this process's root directory if root is empty.
func At(root string) Tree { return Tree{Sys: root + "/sys", Dev: root + "/dev", Proc: root + "/proc"} }

type prefixed struct{ prefix, root string }

func (t *Tree) roots() [3]prefixed {
	return [3]prefixed{{"/sys", t.Sys}, {"/dev", t.Dev}, {"/proc", t.Proc}}
}

// Recording returns a copy of the tree. If a method of this copy cannot list a directory, it records the error in *failure, where
// a later error replaces it.
func (t *Tree) Recording(failure *error) *Tree {
	own := *t
	own.failure = failure
	return &own
}

// Path translates a kernel path ("/sys/…", "/dev/…", "/proc/…") to a path in this tree.
func (t *Tree) Path(name string) string {
	for _, r := range t.roots() {
		if rest, ok := strings.CutPrefix(name, r.prefix); ok && (rest == "" || rest[0] == '/') {
			return filepath.Join(r.root, rest)
		}
	}
	return name
}

// Present reports whether a kernel path exists. Present does not follow links.
func (t *Tree) Present(name string) bool {
	var found unix.Stat_t
	return unix.Lstat(t.Path(name), &found) == nil
}

// Stat follows links and describes the file at a kernel path. Each inspection calls Stat dozens of times, so Stat allocates
// memory only for the path, unlike os.Stat.
func (t *Tree) Stat(name string) (found unix.Stat_t, err error) {
	err = unix.Stat(t.Path(name), &found)
	return found, err
}

// ReadStart returns at most size bytes from the start of a file. ReadStart calls read(2) once and bypasses Go's poller, because
// os.ReadFile would wait forever if a driver returns EAGAIN. ReadStart never reads more than size bytes, because some devices
// hang after their whole configuration space has been read (pci_read_config). The error is [ErrGone] if the file does not exist.
func (t *Tree) ReadStart(name string, size int) (string, error) {
	fd, err := unix.Open(t.Path(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", readError(name, err)
	}
	defer unix.Close(fd)
	var page [AttrSize]byte // on the stack, because an inspection of all devices reads tens of thousands of attributes
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

// Read returns the first page of a file in sysfs or procfs, without surrounding white space.
func (t *Tree) Read(name string) (string, error) {
	text, err := t.ReadStart(name, AttrSize)
	return strings.TrimSpace(text), err
}

// Attr returns an attribute of the device at sysPath, without surrounding white space. The error is [ErrGone] if the
// device or attribute does not exist.
func (t *Tree) Attr(sysPath, name string) (string, error) { return t.Read(sysPath + "/" + name) }

// ReadAll returns the whole content of a file in procfs that may be longer than a page, such as mountinfo.
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

// Int returns the value of a numeric attribute, which may be decimal or have the prefix 0x.
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

// Uint returns the value of a numeric attribute with at most 63 bits. Uint returns 0 if the attribute does not exist.
func (t *Tree) Uint(sysPath, name string) uint64 {
	n, _ := t.Int(sysPath, name)
	return uint64(max(n, 0))
}

// Link reads a link in sysfs and returns the last element of its target. For the link "driver", this is the name of the driver.
// Link returns "" if the link does not exist.
func (t *Tree) Link(sysPath, name string) string {
	target, err := os.Readlink(t.Path(sysPath + "/" + name))
	if err != nil {
		return ""
	}
	return path.Base(target)
}

// Resolve follows a link such as "device" and returns the kernel path of its target. Resolve returns "" if the link does not
// exist or leads out of the tree.
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

// Names returns the sorted names in a directory in sysfs, procfs or /dev. If the directory does not exist, there are no entries.
// If the directory cannot be listed, entries may be missing. Code that must notice a failed listing must use [Tree.Recording].
func (t *Tree) Names(dir string) (names []string) {
	entries, err := os.ReadDir(t.Path(dir))
	if err != nil && t.failure != nil && !errors.Is(err, fs.ErrNotExist) {
		*t.failure = readError(dir, err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Numbered returns the entries of a directory whose names consist of the given prefix and a number, such as "renderD128" for the
// prefix "renderD".
func (t *Tree) Numbered(dir, prefix string) []string {
	return slices.DeleteFunc(t.Names(dir), func(name string) bool { return !IsNumbered(name, prefix) })
}

// Properties returns the properties from the attribute "uevent" of the device at sysPath, such as DRIVER, PCI_SLOT_NAME and
// MAJOR.
func (t *Tree) Properties(sysPath string) map[string]string {
	text, err := t.Attr(sysPath, "uevent")
	if err != nil {
		return nil
	}
	return KeyValues(text, "=")
}

// KeyValues parses lines that consist of a key, a separator and a value. KeyValues removes any white space around a value.
func KeyValues(text, separator string) map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, separator); ok {
			all[key] = strings.TrimSpace(value)
		}
	}
	return all
}

// DevNode returns the node of the device at sysPath, such as "/dev/nvme0n1", or "" if there is none.
func (t *Tree) DevNode(sysPath string) string {
	name := t.Properties(sysPath)["DEVNAME"]
	if name == "" || path.Clean("/"+name) != "/"+name {
		return ""
	}
	return "/dev/" + name
}

// Up yields sysPath and the paths above it, nearest first, up to the path directly below /sys/devices.
func Up(sysPath string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for p := sysPath; strings.HasPrefix(p, Devices) && yield(p); p = path.Dir(p) {
		}
	}
}

// IsNumbered reports whether a name consists of the given prefix and a number, such as "loop0" for the prefix "loop".
func IsNumbered(name, prefix string) bool {
	number, ok := strings.CutPrefix(name, prefix)
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}
