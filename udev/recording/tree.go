// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// tree contains the files, links and directories below a root. The keys are relative names such as "sys/devices/…". No name
// passes through a file or a link in the tree, and no link leads out of the tree ([checkTarget]). Therefore, all reads and writes
// stay inside the root.
type tree map[string]entry

// entry is a file with its content, a link with its target, or a directory.
type entry struct {
	text string
	kind kind
}

type kind byte

const (
	isFile kind = iota + 1
	isLink
	isDir
)

func newTree() tree {
	return tree{".": {kind: isDir}, "sys": {kind: isDir}, "dev": {kind: isDir}, "proc": {kind: isDir}}
}

// add adds a file or a link, and any parent directories that are missing.
func (t tree) add(name string, e entry) error {
	if err := checkName(name); err != nil {
		return err
	}
	if _, again := t[name]; again {
		return fmt.Errorf("expected each file once, found /%s again", name)
	}
	err := t.addDir(path.Dir(name))
	if err == nil {
		t[name] = e
	}
	return err
}

// addDir adds a directory and its parents.
func (t tree) addDir(name string) error {
	switch e, ok := t[name]; {
	case ok && e.kind == isDir:
		return nil
	case ok:
		return fmt.Errorf("expected a directory at /%s, found a file or a link", name)
	}
	if err := checkName(name); err != nil { // this limits the depth of the recursion
		return err
	}
	if err := t.addDir(path.Dir(name)); err != nil {
		return err
	}
	t[name] = entry{kind: isDir}
	return nil
}

// The limits for paths are Linux's NAME_MAX, and PATH_MAX minus some bytes for the root.
const (
	maxElement = 255
	maxPath    = 3072
)

// checkName returns an error unless a relative path names a file below the root. checkName rejects detours such as "..".
func checkName(name string) error {
	plain := name != "." && filepath.IsLocal(name) && path.Clean(name) == name && len(name) <= maxPath
	for element := range strings.SplitSeq(name, "/") {
		plain = plain && len(element) <= maxElement
	}
	if !plain {
		return fmt.Errorf("expected a plain path, found %s", quoteShort(name))
	}
	return nil
}

// checkTarget returns an error unless a link in the given directory may point to the target. A target may contain ".." only at
// its start, so the cleaned path proves that the target stays inside the root.
func checkTarget(dir, target string) error {
	down := target + "/"
	for strings.HasPrefix(down, "../") {
		down = down[len("../"):]
	}
	if to := dir + "/" + target; !filepath.IsLocal(to) || path.Clean(to) == "." {
		return fmt.Errorf("expected a target inside the recording, found %s", quoteShort(target))
	}
	if down == "" {
		return nil
	}
	return checkName(strings.TrimSuffix(down, "/"))
}

// derive adds the files and links that the kernel and udevd create for every device. derive skips names that already exist, and
// names that add rejects.
func (t tree) derive(d udev.Device) {
	dir, name := d.SysPath[1:], path.Base(d.SysPath)
	var uevent strings.Builder
	for key, value := range d.Properties.All() {
		if setByKernel(key) {
			uevent.WriteString(key + "=" + strings.TrimPrefix(value, "/dev/") + "\n")
		}
	}
	_ = t.add(dir+"/uevent", entry{uevent.String(), isFile}) // the recording may already contain the file
	node := strings.TrimPrefix(d.DevNode, "/")
	for link := range strings.FieldsSeq(d.Properties.Value("DEVLINKS")) {
		t.link(link[1:], node)
	}
	if major := d.Properties.Value("MAJOR"); major != "" {
		kind, number := "char", major+":"+d.Properties.Value("MINOR")
		if d.Subsystem == "block" {
			kind = "block"
		}
		_ = t.add(dir+"/dev", entry{number + "\n", isFile})
		t.link("sys/dev/"+kind+"/"+number, dir)
		t.link("dev/"+kind+"/"+number, node)
	}
	if !strings.HasPrefix(dir, "sys/devices/") {
		return
	}
	subsystem := "sys/class/" + d.Subsystem
	members := subsystem
	if isBus(d.Subsystem) {
		subsystem = "sys/bus/" + d.Subsystem
		members = subsystem + "/devices"
	}
	t.link(dir+"/subsystem", subsystem)
	t.link(members+"/"+name, dir)
	if d.Subsystem == "block" && d.DevType != "partition" {
		t.link("sys/block/"+name, dir)
	}
	if driver := t[dir+"/driver"]; driver.kind == isLink {
		t.link(path.Join(dir, driver.text, name), dir)
	}
	if group := t[dir+"/iommu_group"]; group.kind == isLink {
		t.link(path.Join(dir, group.text, "devices", name), dir)
	}
}

// link adds a link, unless name exists. The paths name and target are relative to the root.
func (t tree) link(name, target string) {
	if relative, err := filepath.Rel(path.Dir(name), target); err == nil && checkName(target) == nil {
		_ = t.add(name, entry{relative, isLink})
	}
}

// setByKernel reports whether the kernel, rather than a udev rule or udevd itself, sets a property.
func setByKernel(key string) bool {
	switch key {
	case "ACTION", "SEQNUM", "SUBSYSTEM", "DEVLINKS", "TAGS", "CURRENT_TAGS", "USEC_INITIALIZED":
		return false
	}
	return !slices.ContainsFunc([]string{"ID_", "UDEV_", "SYSTEMD_", "DM_", "LIBINPUT_"}, func(prefix string) bool {
		return strings.HasPrefix(key, prefix)
	})
}

// isBus reports whether a subsystem is a bus rather than a class. A recording does not contain this information.
func isBus(subsystem string) bool {
	return slices.Contains([]string{
		"acpi", "auxiliary", "ccw", "clockevents", "clocksource", "container", "cpu", "css", "cxl", "dax", "dfl",
		"event_source", "hid", "i2c", "machinecheck", "mdev", "memory", "mmc", "nd", "node", "nvmem", "pci",
		"pci_express", "platform", "pnp", "rbd", "scsi", "sdio", "serio", "spi", "thunderbolt", "usb", "usb-serial",
		"virtio", "vmbus", "wmi", "workqueue", "xen",
	}, subsystem)
}

// apply changes the tree below root from one state to another, and leaves unchanged files alone. apply replaces a changed file
// atomically, so that a reader always finds a complete file. If the parameter "from" is nil, apply assumes that no process reads
// the tree yet.
func apply(root string, from, to tree) error {
	for name, e := range from {
		if next, ok := to[name]; ok && (next.kind == isDir) == (e.kind == isDir) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
			return err
		}
	}
	for name, e := range to {
		if before, ok := from[name]; e.kind == isDir && (!ok || before != e) {
			if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
				return err
			}
		}
	}
	for name, e := range to {
		if before, ok := from[name]; e.kind != isDir && (!ok || before != e) {
			if err := e.write(root, name, from != nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// write creates the file or link. If the parameter "read" is true, a process may be reading the tree, so write creates the file
// as ".spare" in the root and renames it.
func (e entry) write(root, name string, read bool) error {
	at := filepath.Join(root, name)
	to := at
	if read {
		to = filepath.Join(root, ".spare")
	}
	var err error
	if e.kind == isLink {
		err = os.Symlink(e.text, to)
	} else {
		err = os.WriteFile(to, []byte(e.text), 0o644)
	}
	if err == nil && read {
		err = os.Rename(to, at)
	}
	if err != nil {
		_ = os.Remove(to) // otherwise, the next file could not be created
	}
	return err
}
