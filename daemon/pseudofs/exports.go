// SPDX-License-Identifier: Apache-2.0

package pseudofs

// What the kernel serves to others: over a network, or to virtual machines.
//
// Follows: drivers/nvme/target/configfs.c, io-cmd-bdev.c, io-cmd-file.c and passthru.c;
// drivers/target/target_core_configfs.c, target_core_iblock.c and target_core_file.c. Only iblock claims what it opens:
// for the others an exclusive open of the disk succeeds beside them.

import (
	"errors"
	"io/fs"
	"os"
	"strings"
)

// Export is what a target of the kernel has open.
type Export struct {
	By   string // the target, for people: "the NVMe subsystem nqn.2014-08.org:disk", "the SCSI target fileio_0/disk"
	Name string // what it was told to open: "/dev/nvme0n1", a link to that, a file; in passthrough "/dev/nvme0"
}

// Exports lists what is exported, by the tree of configfs in dir; nothing where that or a target is not there. A file or a
// directory that is there and cannot be read is an error.
func Exports(dir string) ([]Export, error) {
	t := targets{}
	for _, subsystem := range t.names(dir + "/nvmet/subsystems") {
		path := dir + "/nvmet/subsystems/" + subsystem
		places := []string{path + "/passthru"}
		for _, namespace := range t.names(path + "/namespaces") {
			places = append(places, path+"/namespaces/"+namespace)
		}
		for _, place := range places {
			if t.text(place+"/enable") == "1" {
				t.add("the NVMe subsystem "+subsystem, t.text(place+"/device_path"))
			}
		}
	}
	for _, plugin := range t.names(dir + "/target/core") { // "fileio_0"
		for _, object := range t.names(dir + "/target/core/" + plugin) {
			path := dir + "/target/core/" + plugin + "/" + object
			if enabled, err := ReadStart(path+"/enable", AttrSize); err == nil && strings.TrimSpace(enabled) == "0" {
				continue
			}
			by := "the SCSI target " + plugin + "/" + object
			shown := t.text(path + "/info")
			t.add(by, t.text(path+"/udev_path"))
			t.add(by, between(shown, "File: ", "  Size: "))          // fd_show_configfs_dev_params
			t.add(by, between(shown, "UDEV PATH: ", "  readonly: ")) // iblock_show_configfs_dev_params
		}
	}
	return t.exports, t.err
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
