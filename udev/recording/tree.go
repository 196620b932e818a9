// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// tree is what lies below a root: names are relative to it, "sys/devices/…". That no name leads through a file or a
// link of the tree is what keeps every write inside the root.
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
	return &tree{entries: make(map[string]entry), dirs: make(map[string]struct{})}
}

// tree lays out the recording. An error names the line of what does not fit with the rest.
func (r *Recording) tree() (*tree, error) {
	t := newTree()
	for _, d := range r.devices {
		if err := t.addDir("sys" + d.path); err != nil {
			return nil, fmt.Errorf("line %d: %w", d.line, err)
		}
	}
	for _, d := range r.devices {
		if err := t.addDevice(d); err != nil {
			return nil, err
		}
	}
	for _, f := range r.files {
		if err := t.addFile(f); err != nil {
			return nil, fmt.Errorf("line %d: %w", f.line, err)
		}
	}
	for _, d := range r.devices {
		t.deriveSysfs(d)
		t.deriveDev(d)
	}
	return t, nil
}

// addDevice adds what the text says of a device.
func (t *tree) addDevice(d *device) error {
	for _, a := range d.attrs {
		if err := t.add("sys"+d.path+"/"+a.name, entry{a.value, a.link}); err != nil {
			return fmt.Errorf("line %d: %w", a.line, err)
		}
	}
	if d.node == "" {
		return nil
	}
	if err := t.add("dev/"+d.node, entry{text: d.content}); err != nil {
		return fmt.Errorf("line %d: %w", d.line, err)
	}
	return nil
}

func (t *tree) addFile(f file) error {
	if name, isDir := strings.CutSuffix(f.path[1:], "/"); isDir {
		return t.addDir(name)
	}
	return t.add(f.path[1:], entry{text: f.text})
}

func (t *tree) add(name string, e entry) error {
	if t.taken(name) {
		return fmt.Errorf("expected each file once, found /%s again", name)
	}
	if err := t.addDir(path.Dir(name)); err != nil {
		return err
	}
	t.entries[name] = e
	return nil
}

// addDir adds a directory and those above it.
func (t *tree) addDir(name string) error {
	for ; name != "."; name = path.Dir(name) {
		if _, ok := t.entries[name]; ok {
			return fmt.Errorf("expected a directory at /%s, found a file or a link", name)
		}
		if _, ok := t.dirs[name]; ok {
			return nil
		}
		t.dirs[name] = struct{}{}
	}
	return nil
}

func (t *tree) taken(name string) bool {
	_, isEntry := t.entries[name]
	_, isDir := t.dirs[name]
	return isEntry || isDir
}

// derive adds what follows from the text unless something else is there: the text's own word counts, and of two devices
// the first.
func (t *tree) derive(name string, e entry) {
	above := path.Dir(name)
	for dir := above; dir != "."; dir = path.Dir(dir) {
		if _, ok := t.entries[dir]; ok {
			return
		}
	}
	if !t.taken(name) {
		// Cannot fail: nothing above name is a file.
		_ = t.add(name, e)
	}
}

// deriveLink adds a link from name to target, both relative to the root.
func (t *tree) deriveLink(name, target string) {
	relative, err := filepath.Rel(path.Dir(name), target)
	if err == nil {
		t.derive(name, entry{relative, true})
	}
}

// deriveSysfs adds the files and links that the kernel makes for every device of a subsystem.
func (t *tree) deriveSysfs(d *device) {
	dir := "sys" + d.path
	name := path.Base(d.path)
	t.derive(dir+"/uevent", entry{text: d.uevent})
	if number := d.number(); number != "" {
		t.derive(dir+"/dev", entry{text: number + "\n"})
		t.deriveLink("sys/dev/"+d.kind()+"/"+number, dir)
	}
	if strings.HasPrefix(d.path, "/devices/") {
		subsystem := "sys/class/" + d.Subsystem
		members := subsystem
		if isBus(d.Subsystem) {
			subsystem = "sys/bus/" + d.Subsystem
			members = subsystem + "/devices"
		}
		t.deriveLink(dir+"/subsystem", subsystem)
		t.deriveLink(members+"/"+name, dir)
		if d.Subsystem == "block" && d.DevType != "partition" {
			t.deriveLink("sys/block/"+name, dir)
		}
	}
	for _, a := range d.attrs {
		if a.link {
			t.deriveMember(dir, a)
		}
	}
}

// deriveMember adds the link back from a driver or an IOMMU group to its device.
func (t *tree) deriveMember(dir string, a attr) {
	target := path.Join(dir, a.value)
	switch {
	case a.name == "driver" && strings.HasPrefix(target, "sys/bus/"):
		t.deriveLink(target+"/"+path.Base(dir), dir)
	case a.name == "iommu_group" && strings.HasPrefix(target, "sys/kernel/iommu_groups/"):
		t.deriveLink(target+"/devices/"+path.Base(dir), dir)
	}
}

// deriveDev adds the links to a node that udevd makes.
func (t *tree) deriveDev(d *device) {
	if d.node == "" {
		return
	}
	for _, link := range d.links {
		t.deriveLink("dev/"+link, "dev/"+d.node)
	}
	if number := d.number(); number != "" {
		t.deriveLink("dev/"+d.kind()+"/"+number, "dev/"+d.node)
	}
}

// number returns MAJOR:MINOR, empty for a device without a node.
func (d *device) number() string {
	major, minor := d.Properties.Value("MAJOR"), d.Properties.Value("MINOR")
	if major == "" {
		return ""
	}
	return major + ":" + minor
}

func (d *device) kind() string {
	if d.Subsystem == "block" {
		return "block"
	}
	return "char"
}

// isBus tells whether a subsystem is a bus of the kernel's and not a class; a recording does not say.
func isBus(subsystem string) bool {
	return slices.Contains([]string{
		"acpi", "auxiliary", "ccw", "clockevents", "clocksource", "container", "cpu", "css", "cxl", "dax", "dfl",
		"event_source", "hid", "i2c", "machinecheck", "mdev", "memory", "mmc", "nd", "node", "nvmem", "pci",
		"pci_express", "platform", "pnp", "rbd", "scsi", "sdio", "serio", "spi", "thunderbolt", "usb", "usb-serial",
		"virtio", "vmbus", "wmi", "workqueue", "xen",
	}, subsystem)
}
