// SPDX-License-Identifier: Apache-2.0

package sysfs

// This file finds block devices that the kernel exports over a network or to virtual machines.
//
// Follows: drivers/nvme/target/configfs.c, io-cmd-bdev.c, io-cmd-file.c and passthru.c; drivers/target/target_core_configfs.c,
// target_core_iblock.c, target_core_file.c and target_core_pscsi.c; drivers/usb/gadget/function/storage_common.c;
// drivers/block/rnbd/rnbd-srv.c and rnbd-srv-sysfs.c; fs/configfs/mount.c.
//
// Only the targets iblock and pscsi open a disk exclusively. If any other target has a disk open, the disk can still be opened
// exclusively.
//
// A target opens its disk by a name in the mount namespace of the process that configured the target. The name may be a link, or
// a node created by mknod, so only the device number is reliable. metalplug's units may not trace process 1, so they cannot look
// below /proc/1/root (proc_pid_get_link). If the name does not exist in the mount namespace of this process, it may be a link to
// any disk. metalplug then treats all disks as exported, except those that the target cannot have open (see [reach]).

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// export is a device or file that a kernel target has open.
type export struct {
	by     string // description, such as "the NVMe subsystem nqn.2014-08.org:disk" or "the SCSI target fileio_0/disk"
	name   string // the opened name: "/dev/nvme0n1", a link to it, a file, or "/dev/nvme0" for passthrough
	number string // number of the open block device, such as "8:16", or empty if unknown; takes precedence over the name
	scsi   string // address of the SCSI device that receives the commands, such as "2:0:1:3", or empty if unknown
	reach  reach  // the devices that may be open if the name does not exist in the mount namespace of this process
}

// reach describes which devices a target may have open if metalplug cannot find the name that the target opened.
type reach int

const (
	anyDisk       reach = iota
	anyController       // any NVMe controller
	noDisk              // a regular file, or a disk that the target has open exclusively, so that metalplug cannot open it exclusively
)

// checkExports checks whether a kernel target has a disk open, either directly or through its generic node or a controller.
func checkExports(t *Tree, d Disk) error {
	all, err := exports(t)
	if err != nil {
		return undetermined(d, "exported", err)
	}
	for _, e := range all {
		n, open, err := openedNode(t, e, d.Nodes)
		if err != nil {
			return undetermined(d, "exported", err)
		}
		if open {
			return usef(true, "%s is exported by %s", n.Name(), e.by)
		}
	}
	return nil
}

// openedNode returns the first given node that an export has open. If there is none, the result "open" is false. An error means
// that metalplug cannot determine which device is open.
func openedNode(t *Tree, e export, nodes []Node) (n Node, open bool, err error) {
	if e.number != "" {
		n, open = findNode(nodes, func(n Node) bool { return n.Block && n.Number == e.number })
		return n, open, nil
	}
	if n, open = findNode(nodes, func(n Node) bool { return e.scsi != "" && path.Base(t.Resolve(n.SysPath+"/device")) == e.scsi }); open {
		return n, true, nil
	}
	known := false
	for _, name := range possiblePaths(e.name) {
		found, err := t.Stat(name)
		if err != nil {
			continue
		}
		if n, open = findNode(nodes, func(n Node) bool { return isNodeOf(t, n, found) }); open {
			return n, true, nil
		}
		known = known || found.Mode&unix.S_IFMT != unix.S_IFDIR
	}
	if known {
		return Node{}, false, nil
	}
	last := path.Base(path.Clean(e.name))
	if n, open = findNode(nodes, func(n Node) bool { return isNode(last, n.Name()) }); open {
		return n, true, nil
	}
	inDev := path.Base(path.Dir(path.Clean(e.name))) == "dev" // a link in another directory may have any name
	// If the name belongs to another device, this process cannot see that device's node.
	other := inDev && (t.Present("/sys/class/block/"+last) || t.Present("/sys/class/nvme/"+last))
	_, controller := findNode(nodes, func(n Node) bool { return t.Link(n.SysPath, "subsystem") == nvmeClass })
	if other || e.reach == noDisk || e.reach == anyController && !controller {
		return Node{}, false, nil
	}
	return Node{}, false, fmt.Errorf("%s has opened %q, which metalplug cannot see; export the disk by a name in /dev, or stop exporting it", e.by, e.name)
}

// possiblePaths returns the paths at which a device with the given name may be found. The first is the name itself. A container
// may have the host's /dev at another path, as in "/host/dev/nvme0n1". The second path is therefore the corresponding path in
// this process's /dev.
func possiblePaths(name string) []string {
	if !path.IsAbs(name) {
		return nil // the name is relative to a directory that belongs to the process that configured the target
	}
	names := []string{path.Clean(name)}
	if i := strings.LastIndex(names[0], "/dev/"); i > 0 {
		names = append(names, names[0][i:])
	}
	return names
}

// isNodeOf reports whether a file is a node of a device. isNodeOf compares the device numbers if there are any. Otherwise,
// isNodeOf checks whether the file is the device's node in /dev.
func isNodeOf(t *Tree, n Node, found unix.Stat_t) bool {
	if number, block := Number(found); number != "" && block == n.Block && n.Number != "" {
		return number == n.Number
	}
	own, err := t.Stat("/dev/" + strings.ReplaceAll(n.Name(), "!", "/"))
	return err == nil && own.Dev == found.Dev && own.Ino == found.Ino
}

// exports returns the exports of all targets. A target whose module is not loaded has no exports. exports returns an error if an
// existing file or directory cannot be read, or if configfs does not show an active target's exports.
func exports(t *Tree) ([]export, error) {
	var r targets
	r.Tree = t.Recording(&r.err)
	const configfs = "/sys/kernel/config/"
	r.checkVisible("nvmet", configfs+"nvmet")
	r.checkVisible("target_core_mod", configfs+"target")
	r.checkVisible("usb_f_mass_storage", configfs+"usb_gadget")
	r.nvme(configfs + "nvmet/subsystems")
	r.scsi(configfs + "target/core")
	r.usb(configfs + "usb_gadget")
	r.rnbd("/sys/class/rnbd-server/ctl/devices")
	r.scst("/sys/kernel/scst_tgt/devices")
	return r.exports, r.err
}

// checkVisible checks that configfs shows a module's exports. Exports continue to work while configfs is not mounted. Each export
// holds a reference to its module (configfs_mkdir). A module without references therefore has no exports.
func (r *targets) checkVisible(module, dir string) {
	sysPath := "/sys/module/" + module
	if r.Present(dir) || !r.Present(sysPath) {
		return
	}
	if count, err := r.Attr(sysPath, "refcnt"); err == nil && count == "0" {
		return
	}
	if r.err == nil {
		r.err = fmt.Errorf("module %s is in use, and %s does not exist; run \"mount -t configfs none /sys/kernel/config\", then restart metalplugd", module, dir)
	}
}

func (r *targets) nvme(dir string) {
	for _, subsystem := range r.dirs(dir) {
		root := dir + "/" + subsystem
		places, reach := []string{root + "/passthru"}, anyController // nvmet_passthru_ctrl_enable accepts only controllers
		for _, namespace := range r.dirs(root + "/namespaces") {
			places = append(places, root+"/namespaces/"+namespace)
		}
		for _, place := range places {
			if r.text(place+"/enable") == "1" {
				r.add("the NVMe subsystem "+subsystem, r.text(place+"/device_path"), reach)
			}
			reach = anyDisk
		}
	}
}

// scsi finds the exports among the storage objects of LIO. The attribute info shows which file or block device is open. The
// attribute udev_path contains the name that the configuring tool recorded. With target_core_user, a process rather than the
// kernel opens the disk and serves it. iblock and pscsi open the disk exclusively (iblock_configure_device,
// pscsi_create_type_disk).
func (r *targets) scsi(dir string) {
	for _, plugin := range r.dirs(dir) { // "fileio_0"
		for _, object := range r.dirs(dir + "/" + plugin) {
			place := dir + "/" + plugin + "/" + object
			if enabled, err := r.Read(place + "/enable"); err == nil && enabled == "0" {
				continue
			}
			by := "the SCSI target " + plugin + "/" + object
			shown := r.text(place + "/info")
			switch kind, _, _ := strings.Cut(plugin, "_"); kind {
			case "iblock": // iblock_show_configfs_dev_params
				major, minor := textBetween(shown, "Major: ", " "), textBetween(shown, "Minor: ", " ")
				if IsNumbered(major, "") && IsNumbered(minor, "") {
					r.exports = append(r.exports, export{by: by, number: major + ":" + minor})
				} else {
					r.add(by, r.text(place+"/udev_path"), noDisk)
				}
			case "fileio": // fd_show_configfs_dev_params
				reach := anyDisk
				if r.regular(place, shown) {
					reach = noDisk
				}
				file := textBetween(shown, "File: ", "  Size: ")
				if file == "" {
					file = r.text(place + "/udev_path")
				}
				r.add(by, file, reach)
			case "pscsi":
				r.exports = append(r.exports, export{by: by, name: r.text(place + "/udev_path"), reach: noDisk, scsi: scsiAddress(plugin, shown)})
			}
		}
	}
}

// scsiAddress returns the sysfs name of the SCSI device that pscsi sends its commands to (pscsi_show_configfs_dev_params). The
// name consists of host, channel, target and LUN. The attribute udev_path may name a different device. If a pscsi plugin serves a
// whole SCSI host, only the plugin's name shows the host number.
func scsiAddress(plugin, shown string) string {
	host := textBetween(shown, "Host ID: ", "\n")
	if !IsNumbered(host, "") {
		_, host, _ = strings.Cut(plugin, "_")
	}
	return strings.Join([]string{host, textBetween(shown, "Channel ID: ", " "), textBetween(shown, "Target ID: ", " "), textBetween(shown, "LUN: ", " ")}, ":")
}

// regular reports whether a fileio storage object is a regular file. For a regular file, fd_configure_device requires a size and
// sets the WRITE SAME limit to 0x1000. A block device gets another limit. If the size or the limit was changed later, metalplug
// assumes that the object may be a disk.
func (r *targets) regular(place, shown string) bool {
	size := textBetween(shown, "  Size: ", " ")
	return IsNumbered(size, "") && strings.Trim(size, "0") != "" && r.text(place+"/attrib/max_write_same_len") == "4096"
}

// usb finds mass storage that this host provides to another host (Documentation/ABI/testing/configfs-usb-gadget-mass-storage).
// The kernel keeps a configured file open even if no other host is connected (fsg_lun_open).
func (r *targets) usb(dir string) {
	for _, gadget := range r.dirs(dir) {
		for _, function := range r.dirs(dir + "/" + gadget + "/functions") {
			place := dir + "/" + gadget + "/functions/" + function
			if strings.HasPrefix(function, "mass_storage.") {
				for _, lun := range r.dirs(place) { // "lun.0"
					r.add("the USB gadget "+gadget, r.text(place+"/"+lun+"/file"), anyDisk)
				}
			}
		}
	}
}

// rnbd finds disks that are exported as RDMA block devices. Each exported disk has a directory that contains a link to the disk
// (Documentation/ABI/testing/sysfs-class-rnbd-server).
func (r *targets) rnbd(dir string) {
	for _, device := range r.dirs(dir) {
		target, err := os.Readlink(r.Path(dir + "/" + device + "/block_dev"))
		if r.record(err); err == nil {
			r.add("the RNBD server", "/dev/"+path.Base(target), anyDisk)
		}
	}
}

// scst finds the devices of SCST, a target that is not part of Linux. The first line of the attribute "filename" is the name of
// the open file. If the name is not the default, a line "[key]" follows.
func (r *targets) scst(dir string) {
	for _, device := range r.Names(dir) {
		if file := dir + "/" + device + "/filename"; r.Present(file) {
			name, _, _ := strings.Cut(r.text(file), "\n")
			r.add("the SCST device "+device, strings.TrimSpace(name), anyDisk)
		}
	}
}

// targets collects the exports of all targets and keeps the first error.
type targets struct {
	*Tree
	exports []export
	err     error
}

func (r *targets) add(by, name string, reach reach) {
	if name != "" {
		r.exports = append(r.exports, export{by: by, name: name, reach: reach})
	}
}

// dirs returns the names of a directory's subdirectories, without its attributes.
func (r *targets) dirs(dir string) []string {
	return slices.DeleteFunc(r.Names(dir), func(name string) bool {
		file, err := r.Stat(dir + "/" + name)
		return err == nil && file.Mode&unix.S_IFMT != unix.S_IFDIR
	})
}

// text reads an attribute. An attribute in configfs is at most one page long, like an attribute in sysfs (SIMPLE_ATTR_SIZE in
// fs/configfs/file.c).
func (r *targets) text(name string) string {
	text, err := r.Read(name)
	r.record(err)
	return text
}

// record keeps the first error, but ignores errors about missing files.
func (r *targets) record(err error) {
	if err != nil && r.err == nil && !errors.Is(err, fs.ErrNotExist) {
		r.err = err
	}
}

// textBetween returns the part of a text between two markers, or "" if one of them is missing.
func textBetween(text, before, after string) string {
	_, rest, _ := strings.Cut(text, before)
	found, _, ok := strings.Cut(rest, after)
	if !ok {
		return ""
	}
	return found
}
