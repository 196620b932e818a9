// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// writeAttrs writes the attributes of a device, including those in subdirectories that are not devices themselves. The kernel
// has no list of attributes. A future class may need any attribute, and a recording cannot be extended later. Therefore,
// writeAttrs reads every file for which isOmitted returns false. The kernel refuses to open an attribute that cannot
// be read, even for root (KERNFS_ROOT_EXTRA_OPEN_PERM_CHECK).
func (r *Recorder) writeAttrs(text *strings.Builder, sysPath, below string, depth int) {
	entries, err := os.ReadDir(r.Path(path.Join(sysPath, below)))
	if err != nil {
		return // the device has vanished
	}
	for _, e := range entries {
		name := path.Join(below, e.Name())
		full := path.Join(sysPath, name)
		switch {
		case isOmitted(e.Name()):
		case e.Type()&fs.ModeSymlink != 0:
			if target, err := os.Readlink(r.Path(full)); err == nil && !filepath.IsAbs(target) && !strings.ContainsAny(name+target, "=\n") {
				fmt.Fprintf(text, "L: %s=%s\n", name, target)
			}
		case e.IsDir():
			if !r.Present(full+"/uevent") && depth > 1 {
				r.writeAttrs(text, sysPath, name, depth-1)
			}
		case e.Type().IsRegular():
			size := sysfs.AttrSize
			if e.Name() == "config" {
				size = configSize
			}
			if value, err := r.ReadStart(full, size); err == nil && !strings.ContainsAny(name, "=\n") {
				r.secrets.attr(name, value)
				writeAttr(text, name, value)
			}
		}
	}
}

// isOmitted reports whether a recording leaves out an entry in a device's directory. Some entries are redundant, large or
// useless. Other entries are slow to read, or reading them has side effects.
func isOmitted(name string) bool {
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

func writeAttr(text *strings.Builder, name, value string) {
	if utf8.ValidString(value) && !strings.ContainsRune(value, 0) {
		fmt.Fprintf(text, "A: %s=%s\n", name, escape(value))
		return
	}
	fmt.Fprintf(text, "H: %s=%s\n", name, hex.EncodeToString([]byte(value)))
}

// escape is the inverse of unescape. The output of escape is the same as that of GLib's g_strescape.
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
