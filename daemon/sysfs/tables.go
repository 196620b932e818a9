// SPDX-License-Identifier: Apache-2.0

package sysfs

// The tables of procfs by which a block device is in use.
//
// Follows: Documentation/filesystems/proc.rst, 3.5 (mountinfo); mm/swapfile.c (/proc/swaps); fs/seq_file.c (mangle_path).

import (
	"iter"
	"path"
	"strconv"
	"strings"
)

// mount is a line of mountinfo.
type mount struct {
	number string // of the device, "259:1"; "0:N" where the file system has none or, as btrfs, several
	where  string
	source string // what is mounted, as mount(2) was told: "/dev/nvme0n1p1", or a link of udev's to that
}

// anonymous tells that the number is that of no block device, so that only the source may name one.
func (m mount) anonymous() bool { return strings.HasPrefix(m.number, "0:") }

// mounts yields the mounts of the text of a mountinfo file.
func mounts(table string) iter.Seq[mount] {
	return func(yield func(mount) bool) {
		for line := range strings.Lines(table) {
			fixed, filesystem, _ := strings.Cut(line, " - ")
			fields := strings.Fields(fixed) // id, parent, major:minor, root, mount point, …
			if len(fields) < 5 {
				continue
			}
			m := mount{number: fields[2], where: unescape(fields[4])}
			if kind := strings.Fields(filesystem); len(kind) > 1 { // type, source, …
				m.source = unescape(kind[1])
			}
			if !yield(m) {
				return
			}
		}
	}
}

// swaps yields the names in the text of /proc/swaps: of nodes and files, and that of the column.
func swaps(table string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(table) {
			name, _, _ := strings.Cut(line, " ")
			if !yield(unescape(strings.TrimSpace(name))) {
				return
			}
		}
	}
}

// isNode reports whether a name in /dev, without links, is that of the node of a device, which sysfs calls device. sysfs
// writes "!" where the name has "/" (dev_set_name).
func isNode(name, device string) bool {
	return path.Base(name) == path.Base(strings.ReplaceAll(device, "!", "/"))
}

// unescape undoes what the kernel does to blanks in a path: "\040" and the like.
func unescape(text string) string {
	var plain strings.Builder
	for {
		before, after, found := strings.Cut(text, `\`)
		plain.WriteString(before)
		if !found {
			return plain.String()
		}
		if code, err := strconv.ParseUint(after[:min(3, len(after))], 8, 8); err == nil && len(after) >= 3 {
			plain.WriteByte(byte(code))
			after = after[3:]
		} else {
			plain.WriteByte('\\')
		}
		text = after
	}
}
