// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// attrs writes the attributes in the directory of a device, and those in subdirectories that are not devices themselves. The
// kernel has no list of attributes. A future class may need any attribute, and a recording cannot be extended later. Therefore,
// attrs reads every file except those that are known to be useless or harmful.
func (r *Recorder) attrs(text *strings.Builder, s secrets, dir, below string, depth int) {
	entries, err := os.ReadDir(filepath.Join(dir, below))
	if err != nil {
		return // the device has vanished
	}
	for _, e := range entries {
		name := path.Join(below, e.Name())
		full := filepath.Join(dir, name)
		switch {
		case skipped(e.Name()):
		case e.Type()&fs.ModeSymlink != 0:
			if target, err := os.Readlink(full); err == nil && !filepath.IsAbs(target) && !strings.ContainsAny(name+target, "=\n") {
				fmt.Fprintf(text, "L: %s=%s\n", name, target)
			}
		case e.IsDir():
			if _, err := os.Lstat(filepath.Join(full, "uevent")); err != nil && depth > 1 {
				r.attrs(text, s, dir, name, depth-1)
			}
		case e.Type().IsRegular():
			if value, err := readAttr(full, e); err == nil && !strings.ContainsAny(name, "=\n") {
				s.attr(name, value)
				writeAttr(text, name, value)
			}
		}
	}
}

// skipped reports whether a recording omits an entry in a device's directory. Some entries are redundant, large or useless.
// Reading others takes a long time or has side effects.
func skipped(name string) bool {
	switch name {
	case "uevent", "dev", "subsystem", "power", "vpd", "rom", "trace", "msi_irqs", "msi_bus", "firmware_node", "wakeup",
		"statistics", "mq", "bdi", "stat", "inflight", "events", "integrity", "counters", "hw_counters",
		"hw_stats", "diagnostics", "gids", "gid_attrs", "pkeys", "of_node", "physical_node", "crashdump", "devcoredump":
		return true
	}
	return slices.ContainsFunc([]string{"resource", "consumer:", "supplier:", "vpd_", "aer_rootport_", "ari_"}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

// errUnread is returned for a write-only attribute.
var errUnread = errors.New("cannot be read")

// readAttr reads an attribute with a single read. It does not use Go's poller, which would wait forever if a driver
// returned EAGAIN.
func readAttr(file string, e fs.DirEntry) (string, error) {
	if info, err := e.Info(); err != nil || info.Mode().Perm()&0o444 == 0 {
		return "", errUnread
	}
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	size := attrSize
	if e.Name() == "config" {
		size = configSize
	}
	buf := make([]byte, size)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func writeAttr(text *strings.Builder, name, value string) {
	if utf8.ValidString(value) && !strings.ContainsRune(value, 0) {
		fmt.Fprintf(text, "A: %s=%s\n", name, escape(value))
		return
	}
	fmt.Fprintf(text, "H: %s=%s\n", name, hex.EncodeToString([]byte(value)))
}

// escape is the inverse of unescape. Its output is the same as that of GLib's g_strescape.
func escape(text string) string {
	var b strings.Builder
	for i := range len(text) {
		c := text[i]
		if at := strings.IndexByte("\n\t\r\b\f\v\"\\", c); at >= 0 {
			b.WriteByte('\\')
			b.WriteByte(`ntrbfv"\`[at])
		} else if c < ' ' || c > '~' {
			fmt.Fprintf(&b, `\%03o`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
