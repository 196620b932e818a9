// SPDX-License-Identifier: Apache-2.0

package reset

// What sysfs and procfs tell.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/pseudofs"
)

// host is the machine, with the seam to its kernel. Its methods take the names that the kernel uses ("/sys/devices/…",
// "/dev/…", "/proc/…"), wherever the trees really are.
type host struct {
	root string // of the three trees; empty but in tests
	kernel
	step step
}

// attr reads an attribute of the device at sysPath, without surrounding blanks. The error is [Gone] if there is none.
func (h *host) attr(sysPath, name string) (string, error) {
	file := sysPath + "/" + name
	text, err := h.start(file, pseudofs.AttrSize)
	return strings.TrimSpace(text), err
}

// start returns the first bytes of an attribute.
func (h *host) start(name string, size int) (string, error) {
	text, err := pseudofs.ReadStart(h.root+name, size)
	if err != nil {
		return "", readError(name, err)
	}
	return text, nil
}

// number reads an attribute that is one; 0 if it is not there.
func (h *host) number(sysPath, name string) uint64 {
	text, err := h.attr(sysPath, name)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		return 0
	}
	return n
}

// table reads a whole file of procfs.
func (h *host) table(name string) (string, error) {
	b, err := os.ReadFile(h.root + name)
	if err != nil {
		return "", readError(name, err)
	}
	return string(b), nil
}

func readError(name string, err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return errorf(Gone, "read %s: %w", name, err)
	}
	return fmt.Errorf("read %s: %w", name, err)
}

// exists tells whether there is anything under a name; a link counts for itself.
func (h *host) exists(name string) bool {
	_, err := os.Lstat(h.root + name)
	return err == nil
}

// link returns the last element of what a link leads to, such as the name of a driver; empty if there is none.
func (h *host) link(sysPath, name string) string {
	target, err := os.Readlink(h.root + sysPath + "/" + name)
	if err != nil {
		return ""
	}
	return path.Base(target)
}

// resolve returns the name without links of what is under one; empty if there is nothing.
func (h *host) resolve(name string) string {
	real, err := filepath.EvalSymlinks(h.root + name)
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(real, h.root)
}

// names lists a directory in the order of the names; one that is not there is empty.
func (h *host) names(dir string) []string {
	entries, err := os.ReadDir(h.root + dir)
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// property returns a variable of a device's uevent attribute, such as DEVNAME; empty if it has none.
func (h *host) property(sysPath, key string) string {
	text, err := h.attr(sysPath, "uevent")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			return value
		}
	}
	return ""
}

// above returns the nearest device at or above sysPath of a subsystem; empty if there is none.
func (h *host) above(sysPath, subsystem string) string {
	for p := sysPath; len(p) > len(devices); p = path.Dir(p) {
		if h.link(p, "subsystem") == subsystem {
			return p
		}
	}
	return ""
}
