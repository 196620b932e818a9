// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Nodes returns the numbers of all nodes by which a device can be reached, its own first: for a disk its partitions
// (Documentation/ABI/stable/sysfs-block) and the nodes of SCSI commands, for a namespace of NVMe also its generic node and
// the nodes of the controllers of its subsystem, through which commands for each of their namespaces can be sent
// (drivers/nvme/host/ioctl.c, nvme_dev_ioctl). An exclusive open of the disk sees none of those. sysfs is where that is;
// a device that is not in it has its own number alone.
func Nodes(sysfs string, n Number) ([]Number, error) {
	kind := "char"
	if n.Block {
		kind = "block"
	}
	t := nodes{found: []Number{n}}
	dir, err := filepath.EvalSymlinks(fmt.Sprintf("%s/dev/%s/%d:%d", sysfs, kind, n.Major, n.Minor))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return t.found, nil
	case err != nil:
		return nil, fmt.Errorf("look for the nodes of %v: %w", n, err)
	case n.Block:
		t.disk(dir)
	}
	if _, instance, ok := parseNamespace(filepath.Base(dir)); ok {
		t.namespace(sysfs, filepath.Dir(dir), instance)
	}
	if t.err != nil {
		return nil, fmt.Errorf("look for the nodes of %v: %w", n, t.err)
	}
	return t.found, nil
}

// parseNamespace reads the name of a disk or of a generic node, "nvme3n2" or "ng4n2". The second number is that of the
// namespace in its subsystem, for both; the first may be that of the subsystem in one and of the controller in the other
// (drivers/nvme/host/core.c, nvme_alloc_ns, nvme_add_ns_cdev).
func parseNamespace(name string) (disk bool, instance string, ok bool) {
	rest, generic := strings.CutPrefix(name, "ng")
	if !generic {
		rest, disk = strings.CutPrefix(name, "nvme")
	}
	first, instance, ok := strings.Cut(rest, "n")
	digits := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
	return disk, instance, ok && (disk || generic) && digits(first) && digits(instance)
}

// nodes collects the numbers of nodes in sysfs.
type nodes struct {
	found []Number
	err   error // the first, or nil
}

// disk adds a disk, its partitions and its nodes of SCSI commands (drivers/scsi/sg.c, block/bsg.c).
func (t *nodes) disk(dir string) {
	t.add(true, dir)
	for _, name := range t.names(dir) {
		if _, err := os.Stat(filepath.Join(dir, name, "partition")); err == nil {
			t.add(true, filepath.Join(dir, name))
		}
	}
	for _, class := range [...]string{"device/scsi_generic", "device/bsg"} {
		for _, name := range t.names(filepath.Join(dir, class)) {
			t.add(false, filepath.Join(dir, class, name))
		}
	}
}

// namespace adds the nodes of a namespace of NVMe and of its controllers. Its disk and its generic node are each below a
// controller, or with multipath below the subsystem, which has a link to each controller.
func (t *nodes) namespace(sysfs, parent, instance string) {
	dirs := []string{parent}
	class := filepath.Join(sysfs, "class/nvme-subsystem")
	for _, name := range t.names(class) {
		subsystem, err := filepath.EvalSymlinks(filepath.Join(class, name))
		if err != nil {
			continue // it is going
		}
		members := []string{subsystem}
		for _, name := range t.names(subsystem) {
			if dir, err := filepath.EvalSymlinks(filepath.Join(subsystem, name)); err == nil && filepath.Base(dir) == name &&
				filepath.Dir(dir) != subsystem && strings.HasPrefix(name, "nvme") {
				members = append(members, dir)
			}
		}
		if slices.Contains(members, parent) {
			dirs = append(dirs, members...)
		}
	}
	for _, dir := range dirs {
		if !strings.HasPrefix(filepath.Base(dir), "nvme-subsys") {
			t.add(false, dir)
		}
		for _, name := range t.names(dir) {
			switch disk, own, ok := parseNamespace(name); {
			case !ok, own != instance:
			case disk:
				t.disk(filepath.Join(dir, name))
			default:
				t.add(false, filepath.Join(dir, name))
			}
		}
	}
}

// names returns the names in a directory; in one that is not there are none.
func (t *nodes) names(dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	t.fail(err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// add adds the number of a device, once.
func (t *nodes) add(block bool, dir string) {
	text, err := os.ReadFile(filepath.Join(dir, "dev"))
	if err != nil {
		t.fail(err)
		return
	}
	n := Number{Block: block}
	if _, err := fmt.Sscanf(string(text), "%d:%d", &n.Major, &n.Minor); err != nil {
		t.fail(fmt.Errorf("read %s/dev: %q", dir, text))
		return
	}
	if !slices.Contains(t.found, n) {
		t.found = append(t.found, n)
	}
}

// fail keeps the first error, except of a device that is going (fs/kernfs: ENOENT, ENODEV).
func (t *nodes) fail(err error) {
	if t.err == nil {
		t.err = skipRemoved(err)
	}
}
