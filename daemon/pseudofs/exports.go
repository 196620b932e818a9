// SPDX-License-Identifier: Apache-2.0

package pseudofs

// What the kernel serves to others: over a network, or to virtual machines.
//
// Follows: drivers/nvme/target/configfs.c, io-cmd-bdev.c, io-cmd-file.c and passthru.c;
// drivers/target/target_core_configfs.c, target_core_iblock.c and target_core_file.c;
// drivers/usb/gadget/function/storage_common.c; drivers/block/rnbd/rnbd-srv.c and rnbd-srv-sysfs.c. Only iblock claims what
// it opens: for the others an exclusive open of the disk succeeds beside them.

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
)

// Export is what a target of the kernel has open.
type Export struct {
	By   string // the target, for people: "the NVMe subsystem nqn.2014-08.org:disk", "the SCSI target fileio_0/disk"
	Name string // what it was told to open: "/dev/nvme0n1", a link to that, a file; in passthrough "/dev/nvme0"
}

// Exports lists what is exported, by the tree of sysfs in dir and that of configfs below it; nothing where a target is not
// there. A file or a directory that is there and cannot be read is an error.
func Exports(dir string) ([]Export, error) {
	t := targets{}
	t.nvme(dir + "/kernel/config/nvmet/subsystems")
	t.scsi(dir + "/kernel/config/target/core")
	t.usb(dir + "/kernel/config/usb_gadget")
	t.rnbd(dir + "/class/rnbd-server/ctl/devices")
	return t.exports, t.err
}

func (t *targets) nvme(dir string) {
	for _, subsystem := range t.names(dir) {
		root := dir + "/" + subsystem
		places := []string{root + "/passthru"}
		for _, namespace := range t.names(root + "/namespaces") {
			places = append(places, root+"/namespaces/"+namespace)
		}
		for _, place := range places {
			if t.text(place+"/enable") == "1" {
				t.add("the NVMe subsystem "+subsystem, t.text(place+"/device_path"))
			}
		}
	}
}

func (t *targets) scsi(dir string) {
	for _, plugin := range t.names(dir) { // "fileio_0"
		for _, object := range t.names(dir + "/" + plugin) {
			place := dir + "/" + plugin + "/" + object
			if enabled, err := ReadStart(place+"/enable", AttrSize); err == nil && strings.TrimSpace(enabled) == "0" {
				continue
			}
			by := "the SCSI target " + plugin + "/" + object
			shown := t.text(place + "/info")
			t.add(by, t.text(place+"/udev_path"))
			t.add(by, between(shown, "File: ", "  Size: "))          // fd_show_configfs_dev_params
			t.add(by, between(shown, "UDEV PATH: ", "  readonly: ")) // iblock_show_configfs_dev_params
		}
	}
}

// usb looks for mass storage that this host is to another (Documentation/ABI/testing/configfs-usb-gadget-mass-storage). A
// file that is named is open, whether a host is plugged in or not (fsg_lun_open).
func (t *targets) usb(dir string) {
	for _, gadget := range t.names(dir) {
		for _, function := range t.names(dir + "/" + gadget + "/functions") {
			place := dir + "/" + gadget + "/functions/" + function
			if !strings.HasPrefix(function, "mass_storage.") {
				continue
			}
			for _, lun := range t.names(place) { // "lun.0"
				t.add("the USB gadget "+gadget, t.text(place+"/"+lun+"/file"))
			}
		}
	}
}

// rnbd looks for what RDMA block devices of other hosts are made of: there is a directory for each that is mapped, with a
// link to the disk (Documentation/ABI/testing/sysfs-class-rnbd-server).
func (t *targets) rnbd(dir string) {
	for _, device := range t.names(dir) {
		target, err := os.Readlink(dir + "/" + device + "/block_dev")
		if t.note(err); err == nil {
			t.add("the RNBD server", "/dev/"+path.Base(target))
		}
	}
}

// targets gathers exports. The first error is kept.
type targets struct {
	exports []Export
	err     error
}

func (t *targets) add(by, name string) {
	if name != "" {
		t.exports = append(t.exports, Export{by, name})
	}
}

// names lists the directories in one; the attributes beside them are none of what it lists.
func (t *targets) names(dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	t.note(err)
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// text reads an attribute, of a page at most as in sysfs (SIMPLE_ATTR_SIZE in fs/configfs/file.c).
func (t *targets) text(name string) string {
	text, err := ReadStart(name, AttrSize)
	if err != nil {
		err = &fs.PathError{Op: "read", Path: name, Err: err}
	}
	t.note(err)
	return strings.TrimSpace(text)
}

// note keeps an error, but not that something is not there, or not any more.
func (t *targets) note(err error) {
	if err != nil && t.err == nil && !errors.Is(err, fs.ErrNotExist) {
		t.err = err
	}
}

// between returns what stands between two texts; empty: they are not there.
func between(text, before, after string) string {
	_, rest, _ := strings.Cut(text, before)
	found, _, ok := strings.Cut(rest, after)
	if !ok {
		return ""
	}
	return found
}
