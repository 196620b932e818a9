// SPDX-License-Identifier: Apache-2.0

// Package sysfs reads the kernel's files: attributes and links of sysfs, and what sysfs, procfs and configfs show of who
// uses a block device. The daemon and the helper that opens device nodes share it, so that both give one answer.
// It opens no device node and makes no ioctl.
//
// Follows: Documentation/filesystems/sysfs.rst.
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
)

// ErrGone: the device, or the attribute, is not there.
var ErrGone = errors.New("gone")

// AttrSize is the most that there is of one attribute, in bytes: sysfs gives a page.
const AttrSize = 4096

// Devices is where the kernel keeps all devices; everything elsewhere in sysfs is links to there.
const Devices = "/sys/devices/"

// Tree is where the kernel's files are. Its methods take the names that the kernel uses ("/sys/devices/…", "/dev/…",
// "/proc/…"), wherever the three directories really are. The zero value has all of them in /.
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

// Path returns where a path of the kernel's ("/sys/…", "/dev/…", "/proc/…") is to be found.
func (t *Tree) Path(name string) string {
	for _, r := range t.roots() {
		if rest, ok := strings.CutPrefix(name, r.prefix); ok && (rest == "" || rest[0] == '/') {
			return filepath.Join(r.root, rest)
		}
	}
	return name
}

// Present reports whether a path of the kernel's exists; a link counts without what it points to.
func (t *Tree) Present(name string) bool {
	var found unix.Stat_t
	return unix.Lstat(t.Path(name), &found) == nil
}

// Stat returns what a path of the kernel's leads to. Unlike os.Stat it makes no garbage but the path: each look asks for
// dozens.
func (t *Tree) Stat(name string) (found unix.Stat_t, err error) {
	err = unix.Stat(t.Path(name), &found)
	return found, err
}

// Exists reports whether what a path of the kernel's leads to exists.
func (t *Tree) Exists(name string) bool {
	_, err := t.Stat(name)
	return err == nil
}

// ReadStart returns the first bytes of a file, at most size. It is one plain read, past the Go poller: some drivers
// answer EAGAIN, after which os.ReadFile would wait for ever. No more is read: some devices hang when the whole of their
// configuration space is (pci_read_config). The error is [ErrGone] if there is no such file.
func (t *Tree) ReadStart(name string, size int) (string, error) {
	fd, err := unix.Open(t.Path(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", readError(name, err)
	}
	defer unix.Close(fd)
	var page [AttrSize]byte // on the stack: a look at all devices reads tens of thousands of attributes
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

// Read returns the beginning, one page, of a file in sysfs or procfs, without surrounding blanks.
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

// Uint reads an attribute that holds a number; 0 if it is not there.
func (t *Tree) Uint(sysPath, name string) uint64 {
	text, _ := t.Attr(sysPath, name)
	n, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		return 0
	}
	return n
}

// Link returns the last element of what a link in sysfs points to, such as the name of the driver; empty if it is not
// there.
func (t *Tree) Link(sysPath, name string) string {
	target, err := os.Readlink(t.Path(sysPath + "/" + name))
	if err != nil {
		return ""
	}
	return path.Base(target)
}

// Resolve returns the kernel's path that a link leads to, such as "device"; empty if it is not there, or outside of the
// tree.
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

// Names lists a directory in sysfs, procfs or /dev, sorted; nothing if it is not there.
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

// Properties returns what the kernel itself reports of the device at sysPath (its attribute "uevent"): DRIVER,
// PCI_SLOT_NAME, MAJOR and the like.
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

// DevNode returns the node of the device at sysPath, "/dev/nvme0n1"; empty if it has none.
func (t *Tree) DevNode(sysPath string) string {
	name := t.Properties(sysPath)["DEVNAME"]
	if name == "" || path.Clean("/"+name) != "/"+name {
		return ""
	}
	return "/dev/" + name
}

// Above returns the nearest device at or above sysPath of a subsystem; empty if there is none.
func (t *Tree) Above(sysPath, subsystem string) string {
	if t.Link(sysPath, "subsystem") == subsystem {
		return sysPath
	}
	for p := range Parents(sysPath) {
		if t.Link(p, "subsystem") == subsystem {
			return p
		}
	}
	return ""
}

// Parents yields the sysfs paths above sysPath, nearest first, down to those directly below /sys/devices.
func Parents(sysPath string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for p := path.Dir(sysPath); strings.HasPrefix(p, Devices); p = path.Dir(p) {
			if !yield(p) {
				return
			}
		}
	}
}

// Numbered reports whether name is the prefix and a number, as the kernel numbers devices.
func Numbered(name, prefix string) bool {
	number, ok := strings.CutPrefix(name, prefix)
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}
