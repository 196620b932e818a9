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

// tree is what lies below a root. Names are relative to it, "sys/devices/…". No name leads through a file or a link of the
// tree, so every write stays inside the root.
type tree struct {
	entries map[string]entry
	dirs    map[string]struct{}
}

// entry is a file with its content, or a link with its target.
type entry struct {
	text string
	link bool
}

func newTree() *tree {
	return &tree{make(map[string]entry), map[string]struct{}{".": {}, "sys": {}, "dev": {}, "proc": {}}}
}

func (t *tree) add(name string, e entry) error {
	_, isEntry := t.entries[name]
	if _, isDir := t.dirs[name]; isEntry || isDir {
		return fmt.Errorf("expected each file once, found /%s again", name)
	}
	err := t.addDir(path.Dir(name))
	if err == nil {
		t.entries[name] = e
	}
	return err
}

// addDir adds a directory and those above it, or nothing.
func (t *tree) addDir(name string) error {
	var missing []string
	for ; ; name = path.Dir(name) {
		if _, ok := t.entries[name]; ok {
			return fmt.Errorf("expected a directory at /%s, found a file or a link", name)
		}
		if _, ok := t.dirs[name]; ok {
			break
		}
		missing = append(missing, name)
	}
	for _, dir := range missing {
		t.dirs[dir] = struct{}{}
	}
	return nil
}

// derive adds the files and links that the kernel and udevd make for every device, unless something else is there.
func (t *tree) derive(d udev.Device) {
	dir, name := d.SysPath[1:], path.Base(d.SysPath)
	var uevent strings.Builder
	for key, value := range d.Properties.All() {
		if ofKernel(key) {
			uevent.WriteString(key + "=" + strings.TrimPrefix(value, "/dev/") + "\n")
		}
	}
	_ = t.add(dir+"/uevent", entry{text: uevent.String()}) // not where the text has its own
	node := strings.TrimPrefix(d.DevNode, "/")
	for link := range strings.FieldsSeq(d.Properties.Value("DEVLINKS")) {
		t.link(link[1:], node)
	}
	if major := d.Properties.Value("MAJOR"); major != "" {
		kind, number := "char", major+":"+d.Properties.Value("MINOR")
		if d.Subsystem == "block" {
			kind = "block"
		}
		_ = t.add(dir+"/dev", entry{text: number + "\n"})
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
	if driver := t.entries[dir+"/driver"]; driver.link {
		t.link(path.Join(dir, driver.text, name), dir)
	}
	if group := t.entries[dir+"/iommu_group"]; group.link {
		t.link(path.Join(dir, group.text, "devices", name), dir)
	}
}

// link adds a link from name to target, both relative to the root, unless something else is there.
func (t *tree) link(name, target string) {
	if relative, err := filepath.Rel(path.Dir(name), target); err == nil && target != "" {
		_ = t.add(name, entry{relative, true})
	}
}

// ofKernel reports whether the kernel reports a property. It does not report those that udevd and its rules add.
func ofKernel(key string) bool {
	switch key {
	case "ACTION", "SEQNUM", "SUBSYSTEM", "DEVLINKS", "TAGS", "CURRENT_TAGS", "USEC_INITIALIZED":
		return false
	}
	return !slices.ContainsFunc([]string{"ID_", "UDEV_", "SYSTEMD_", "DM_", "LIBINPUT_"}, func(prefix string) bool {
		return strings.HasPrefix(key, prefix)
	})
}

// isBus reports whether a subsystem is a bus of the kernel's and not a class, which a recording does not say.
func isBus(subsystem string) bool {
	return slices.Contains([]string{
		"acpi", "auxiliary", "ccw", "clockevents", "clocksource", "container", "cpu", "css", "cxl", "dax", "dfl",
		"event_source", "hid", "i2c", "machinecheck", "mdev", "memory", "mmc", "nd", "node", "nvmem", "pci",
		"pci_express", "platform", "pnp", "rbd", "scsi", "sdio", "serio", "spi", "thunderbolt", "usb", "usb-serial",
		"virtio", "vmbus", "wmi", "workqueue", "xen",
	}, subsystem)
}

// apply turns the tree below root from one state into another. A file that stays the same is not touched. A file that changes
// is replaced at one stroke, so that no reader ever finds half of it, or nothing.
func apply(root string, from, to *tree) error {
	for name := range from.entries {
		if _, ok := to.entries[name]; !ok {
			if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
				return err
			}
		}
	}
	for dir := range from.dirs {
		if _, ok := to.dirs[dir]; !ok { // nothing below it stays
			if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
				return err
			}
		}
	}
	for dir := range to.dirs {
		if _, ok := from.dirs[dir]; !ok {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				return err
			}
		}
	}
	for name, e := range to.entries {
		if before, ok := from.entries[name]; ok && before == e {
			continue
		}
		if err := e.write(root, name, from.dirs != nil); err != nil {
			return err
		}
	}
	return nil
}

// write makes the file or link. If read is set, a process may be reading. Then it makes the file beside sys and dev first,
// and moves it into its place.
func (e entry) write(root, name string, read bool) error {
	at := filepath.Join(root, name)
	to := at
	if read {
		to = filepath.Join(root, ".spare")
	}
	var err error
	if e.link {
		err = os.Symlink(e.text, to)
	} else {
		err = os.WriteFile(to, []byte(e.text), 0o644)
	}
	if err == nil && read {
		err = os.Rename(to, at)
	}
	if err != nil {
		_ = os.Remove(to) // else the next one could not be made
	}
	return err
}
