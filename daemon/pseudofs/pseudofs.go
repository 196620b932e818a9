// SPDX-License-Identifier: Apache-2.0

// Package pseudofs reads what the kernel tells in files, for the daemon and for the program that acts on what they say:
// an attribute of sysfs, and the lines of the tables in procfs and what is in configfs by which a block device is in
// use. It knows nothing of devices, and whoever asks looks at the files of sysfs and procfs by itself.
//
// Follows: Documentation/filesystems/sysfs.rst; Documentation/filesystems/proc.rst, 3.5 (mountinfo); mm/swapfile.c
// (/proc/swaps); fs/seq_file.c (mangle_path).
package pseudofs

import (
	"iter"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// AttrSize is the most that there is of one attribute, in bytes: sysfs gives a page.
const AttrSize = 4096

// ReadStart returns the first bytes of a file, at most size. It is one plain read, past the Go poller: some drivers
// answer EAGAIN, after which os.ReadFile would wait for ever. The error is an errno.
func ReadStart(name string, size int) (string, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var page [AttrSize]byte // on the stack: a look at all devices reads tens of thousands of attributes
	b := page[:]
	if size > len(page) {
		b = make([]byte, size)
	}
	b = b[:size]
	n, err := unix.Read(fd, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// Mount is a line of mountinfo.
type Mount struct {
	Number string // of the device, "259:1"; "0:N" where the file system has none or, as btrfs, several
	Where  string
	Source string // what is mounted, as mount(2) was told: "/dev/nvme0n1p1", or a link of udev's to that
}

// Anonymous tells that the number is that of no block device, so that only the source may name one.
func (m Mount) Anonymous() bool { return strings.HasPrefix(m.Number, "0:") }

// Mounts yields the mounts of the text of a mountinfo file.
func Mounts(table string) iter.Seq[Mount] {
	return func(yield func(Mount) bool) {
		for line := range strings.Lines(table) {
			mount, filesystem, _ := strings.Cut(line, " - ")
			fields := strings.Fields(mount) // id, parent, major:minor, root, mount point, …
			if len(fields) < 5 {
				continue
			}
			m := Mount{Number: fields[2], Where: unescape(fields[4])}
			if kind := strings.Fields(filesystem); len(kind) > 1 { // type, source, …
				m.Source = unescape(kind[1])
			}
			if !yield(m) {
				return
			}
		}
	}
}

// Swaps yields the names in the text of /proc/swaps: of nodes and files, and that of the column.
func Swaps(table string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(table) {
			name, _, _ := strings.Cut(line, " ")
			if !yield(unescape(strings.TrimSpace(name))) {
				return
			}
		}
	}
}

// IsNode tells whether a name in /dev, without links, is that of the node of a device, which sysfs calls device. sysfs
// writes "!" where the name has "/" (dev_set_name).
func IsNode(name, device string) bool {
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
