// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

const (
	// configSize is the number of recorded bytes of PCI configuration space. This is the size of the header, which the kernel
	// caches (PCI_STD_HEADER_SIZEOF).
	configSize = 64
	// attrDepth is the maximum depth of a recorded attribute below its device. The deepest known attributes are those in
	// InfiniBand's "ports/1/gid_attrs/ndevs/0".
	attrDepth = 5
)

// Recorder writes recordings of a machine. The format is that of umockdev-record, with additional lines, which begin with F, for
// files in /proc and nodes in /dev. A Recorder needs no privileges, but if it does not run as root, the recording lacks the files
// that only root can read.
type Recorder struct {
	sysfs.Tree
	Serials bool // whether to keep serial numbers and other identities instead of replacing them

	secrets secrets // identities that the recorder has found, or that were passed to Hide
}

// Hide makes the recorder mask the given strings in addition to the identities that it finds.
func (r *Recorder) Hide(texts ...string) {
	if r.secrets == nil {
		r.secrets = make(secrets)
	}
	for _, text := range texts {
		r.secrets.add(text)
	}
}

// Mask replaces each recorded or hidden identity in a text, just as the recording does.
func (r *Recorder) Mask(text string) string {
	if r.Serials {
		return text
	}
	return r.secrets.mask(text)
}

// Record returns a recording's text. The text contains the devices with their attributes, and the files in /proc and /dev that
// show how the devices are used. A device that vanishes during the recording is omitted. Record may block for a while, because
// the kernel reads some attributes from the hardware.
func (r *Recorder) Record(devices []udev.Device) string {
	var text strings.Builder
	r.Hide()
	sorted := slices.SortedFunc(slices.Values(devices), func(a, b udev.Device) int { return strings.Compare(a.SysPath, b.SysPath) })
	for _, d := range sorted {
		r.writeDevice(&text, d)
	}
	r.recordFiles(&text, sorted)
	return r.Mask(text.String())
}

// writeDevice writes the part of the recording that describes one device.
func (r *Recorder) writeDevice(text *strings.Builder, d udev.Device) {
	devPath := strings.TrimPrefix(d.SysPath, "/sys")
	if !strings.HasPrefix(devPath, "/devices/") && !strings.HasPrefix(devPath, "/module/") {
		return // Parse derives buses and drivers from the links in their devices
	}
	fmt.Fprintf(text, "P: %s\n", devPath)
	if d.DevNode != "" {
		fmt.Fprintf(text, "N: %s\n", strings.TrimPrefix(d.DevNode, "/dev/"))
	}
	for link := range strings.FieldsSeq(d.Properties.Value("DEVLINKS")) {
		fmt.Fprintf(text, "S: %s\n", strings.TrimPrefix(link, "/dev/"))
	}
	for key, value := range d.Properties.All() {
		switch key {
		case "DEVNAME", "DEVLINKS", "USEC_INITIALIZED", "ACTION", "SEQNUM":
			continue // this property is redundant, or valid only for a moment
		}
		if strings.ContainsAny(key+value, "\n\x00") {
			continue
		}
		r.secrets.property(key, value)
		fmt.Fprintf(text, "E: %s=%s\n", key, value)
	}
	r.writeAttrs(text, d.SysPath, "", attrDepth)
	text.WriteString("\n")
}

// recordFiles adds to the recording what classes read outside sysfs. This includes the mount and swap tables, the NVIDIA driver's
// reports, and NVIDIA's nodes, which udev does not know.
func (r *Recorder) recordFiles(text *strings.Builder, devices []udev.Device) {
	write := func(name, content string) { fmt.Fprintf(text, "F: %s=%s\n", name, escape(content)) }
	for _, name := range []string{"/proc/1/mountinfo", "/proc/self/mountinfo"} {
		if content, err := r.ReadAll(name); err == nil {
			write(name, diskMounts(content, devices))
		}
	}
	if content, err := r.ReadAll("/proc/swaps"); err == nil {
		write("/proc/swaps", content)
	}
	for _, pattern := range []string{
		"gpus/*/information", "capabilities/mig/*", "capabilities/gpu*/mig/gi*/access", "capabilities/gpu*/mig/gi*/ci*/access",
	} {
		found, _ := filepath.Glob(filepath.Join(r.Proc, "driver/nvidia", pattern)) // Glob fails only for an invalid pattern
		for _, file := range found {
			name := "/proc" + strings.TrimPrefix(file, r.Proc)
			if content, err := r.ReadAll(name); err == nil {
				r.secrets.text(content)
				write(name, content)
			}
		}
	}
	for _, pattern := range []string{"nvidia*", "nvidia-caps/*"} {
		found, _ := filepath.Glob(filepath.Join(r.Dev, pattern))
		for _, file := range found {
			if info, err := os.Stat(file); err == nil && !info.IsDir() {
				write("/dev"+strings.TrimPrefix(file, r.Dev), "")
			}
		}
	}
}

// diskMounts returns the mountinfo lines for block devices. No class needs the other lines, which would reveal users' paths.
func diskMounts(mountinfo string, devices []udev.Device) string {
	numbers := make(map[string]bool)
	for _, d := range devices {
		if d.Subsystem == "block" {
			numbers[d.Properties.Value("MAJOR")+":"+d.Properties.Value("MINOR")] = true
		}
	}
	var lines strings.Builder
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line) // id, parent, major:minor, root, mount point, …
		if len(fields) > 4 && (numbers[fields[2]] || strings.Contains(line, " /dev/")) {
			lines.WriteString(line)
		}
	}
	return lines.String()
}

// writeAttrs writes a device's attributes, including those in subdirectories that are not devices themselves. The kernel does not
// provide a list of attributes. A future class may need any attribute, and a recording cannot be extended later. Therefore,
// writeAttrs reads every file for which isOmitted returns false. The kernel refuses to open an attribute that cannot be read,
// even for root (KERNFS_ROOT_EXTRA_OPEN_PERM_CHECK).
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

// secretSize is the minimum length of a masked identity, in bytes. A shorter identity could also be part of unrelated words in
// the text.
const secretSize = 5

// secrets contains a random replacement for each identity in a recording that could reveal the machine or its owner. Identities
// are serial numbers, UUIDs, world wide names, GUIDs, MAC addresses and file system labels. Models, firmware versions, PCI
// addresses, PCI IDs and the mount points of disks are not masked, because bug reports need them.
type secrets map[string]string

// secretProperties lists the udev properties whose whole value is an identity.
var secretProperties = []string{
	"ID_SERIAL_SHORT", "ID_SCSI_SERIAL", "ID_USB_SERIAL_SHORT", "ID_WWN", "ID_WWN_WITH_EXTENSION", "ID_FS_UUID", "ID_FS_UUID_SUB",
	"ID_FS_LABEL", "ID_FS_LABEL_ENC", "ID_PART_TABLE_UUID", "ID_PART_ENTRY_UUID", "ID_PART_ENTRY_NAME", "DM_UUID", "DM_NAME", "MD_UUID", "MD_NAME",
	"ID_REVISION_SERIAL", "ID_NET_NAME_MAC",
}

// secretAttrs lists the sysfs attributes that identify an NVMe controller or namespace, a GPU, or an RDMA, USB or network device
// (Documentation/ABI in the kernel source).
var secretAttrs = []string{
	"serial", "serial_number", "wwid", "wwn", "uuid", "nguid", "eui", "unique_id", "node_guid", "sys_image_guid", "board_serial",
	"product_serial", "hostnqn", "hostid", "subsysnqn", "address", "phys_port_id", "phys_switch_id",
}

func (s secrets) property(key, value string) {
	if slices.Contains(secretProperties, key) {
		s.add(value)
	}
}

func (s secrets) attr(name, value string) {
	if !slices.Contains(secretAttrs, path.Base(name)) {
		return
	}
	value = strings.TrimSpace(value)
	// In an NQN, the naming authority comes before the name (NVMe Base Specification 2.0, 4.5).
	if strings.HasPrefix(value, "nqn.") {
		value = value[strings.LastIndexByte(value, ':')+1:]
	}
	s.add(value)
	if path.Base(name) == "serial" {
		// If a namespace has no identifier of its own, its wwid contains this value in hexadecimal (wwid_show,
		// drivers/nvme/host/sysfs.c).
		s.add(hex.EncodeToString([]byte(value)))
	}
}

// text adds the UUIDs that it finds in the NVIDIA driver's report about a GPU.
func (s secrets) text(content string) {
	for line := range strings.Lines(content) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.HasSuffix(key, "UUID") {
			s.add(strings.TrimSpace(value))
		}
	}
}

// add adds an identity, but not a prefix that names the kind of identity. An identity that is empty, short or all zeros would
// match unrelated parts of the text, so add ignores it.
func (s secrets) add(value string) {
	for _, kind := range []string{"eui.", "uuid.", "nvme.", "naa.", "t10.", "0x", "GPU-"} {
		value = strings.TrimPrefix(value, kind)
	}
	if len(value) < secretSize || strings.Trim(value, "0-:. ") == "" || strings.Contains(value, "unknown") {
		return
	}
	if s[value] == "" {
		s[value] = pseudonym(value)
	}
}

// mask replaces every identity in the text with its random replacement.
func (s secrets) mask(text string) string {
	longestFirst := func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) }
	var replacements []string
	for _, value := range slices.SortedFunc(maps.Keys(s), longestFirst) {
		replacements = append(replacements, value, s[value])
	}
	return strings.NewReplacer(replacements...).Replace(text)
}

// pseudonym returns a random string that has the same form as value. pseudonym replaces digits with digits, letters with letters
// of the same case, and hexadecimal text with hexadecimal text. All other characters remain, so the result is still a valid
// address, UUID or file name.
func pseudonym(value string) string {
	letters := 26
	if strings.Trim(value, "0123456789abcdefABCDEF-:.") == "" {
		letters = 6
	}
	return strings.Map(func(c rune) rune {
		switch {
		case c >= '0' && c <= '9':
			return '0' + rune(rand.IntN(10))
		case c >= 'a' && c <= 'z':
			return 'a' + rune(rand.IntN(letters))
		case c >= 'A' && c <= 'Z':
			return 'A' + rune(rand.IntN(letters))
		}
		return c
	}, value)
}
