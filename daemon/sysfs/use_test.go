// SPDX-License-Identifier: Apache-2.0

package sysfs_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/integration/need"
)

// The disk of the tests is a namespace with a partition and a generic node. The numbers are those after a drive was
// plugged in again.
const (
	ctrl    = "/sys/devices/pci0000:00/0000:00:04.0/nvme/nvme4"
	disk    = ctrl + "/nvme3n2"
	part    = disk + "/nvme3n2p1"
	generic = ctrl + "/ng4n2"
)

func aDisk() map[string]string {
	return map[string]string{
		"/sys/class/nvme/": "", "/sys/class/block/": "", "/sys/class/nvme-generic/": "",
		ctrl + "/subsystem": "-> ../../../../../class/nvme", ctrl + "/dev": "245:4\n",
		disk + "/subsystem": "-> ../../../../../../class/block", disk + "/dev": "259:3\n", disk + "/nsid": "1\n", disk + "/wwid": "eui.01\n",
		disk + "/hidden": "0\n", disk + "/holders/": "", disk + "/uevent": "DEVNAME=nvme3n2\n",
		part + "/subsystem": "-> ../../../../../../../class/block", part + "/partition": "1\n", part + "/dev": "259:4\n", part + "/holders/": "",
		generic + "/subsystem": "-> ../../../../../../class/nvme-generic", generic + "/dev": "242:2\n", generic + "/uevent": "DEVNAME=ng4n2\n",
		"/sys/class/block/nvme3n2": "-> ../../devices/pci0000:00/0000:00:04.0/nvme/nvme4/nvme3n2",
		"/sys/class/block/sda":     "-> ../../devices/sda", "/sys/devices/sda/dev": "8:0\n",
		"/sys/class/nvme/nvme4": "-> ../../devices/pci0000:00/0000:00:04.0/nvme/nvme4", "/sys/class/nvme/nvme5": "-> ../../devices/nvme5", "/sys/devices/nvme5/x": "",
		"/dev/nvme3n2": "", "/dev/nvme3n2p1": "", "/dev/ng4n2": "", "/dev/nvme4": "", "/dev/sda": "",
		"/dev/disk/by-id/it": "-> ../../nvme3n2", "/dev/disk/by-id/other": "-> ../../sda",
		"/proc/1/mountinfo": "22 1 8:0 / / rw - ext4 /dev/sda rw\n", "/proc/self/mountinfo": "", "/proc/swaps": "Filename Type\n",
	}
}

func with(base map[string]string, more map[string]string) map[string]string {
	all := maps.Clone(base)
	maps.Copy(all, more)
	return all
}

func TestInUse(t *testing.T) {
	for _, c := range []struct {
		name   string
		files  map[string]string
		want   string // empty if it is not in use
		byHost bool
	}{
		{"not", nil, "", false},
		{"mounted", map[string]string{"/proc/self/mountinfo": "30 22 259:4 / /data\\040one rw - xfs /dev/nvme3n2p1 rw\n"}, "nvme3n2p1 is mounted on /data one", true},
		{"mounted as btrfs, by a link", map[string]string{"/proc/1/mountinfo": "30 22 0:45 / /b rw - btrfs /dev/disk/by-id/it rw\n"}, "nvme3n2 is mounted on /b", true},
		{"another one as btrfs", map[string]string{"/proc/1/mountinfo": "30 22 0:45 / /b rw - btrfs /dev/disk/by-id/other rw\n"}, "", false},
		{"swapped to", map[string]string{"/proc/swaps": "Filename Type\n/dev/nvme3n2p1 partition\n"}, "nvme3n2p1 is swapped to", true},
		{"part of LVM", map[string]string{disk + "/holders/dm-0": ""}, "nvme3n2 is part of dm-0", false},
		{"a second device of btrfs", map[string]string{"/sys/fs/btrfs/u/devices/nvme3n2p1": ""}, "nvme3n2p1 is part of the mounted btrfs u", false},
		{"below a loop device", map[string]string{"/sys/class/block/loop3/loop/backing_file": "/dev/nvme3n2\n"}, "nvme3n2 is the backing file of loop3", false},
		{"below zram", map[string]string{"/sys/class/block/zram0/backing_dev": "/dev/nvme3n2\n"}, "nvme3n2 is the backing file of zram0", false},
		{"subsystems cannot be listed", map[string]string{"/sys/class/nvme-subsystem": "x"}, "cannot determine whether nvme3n2 is used: read /sys/class/nvme-subsystem: not a directory", false},
		{"SCSI nodes cannot be listed", map[string]string{disk + "/device/bsg": "x"}, "cannot determine whether nvme3n2 is used: read " + disk + "/device/bsg: not a directory", false},
		{"exports cannot be listed", map[string]string{"/sys/kernel/scst_tgt/devices": "x"}, "cannot determine whether nvme3n2 is exported: read /sys/kernel/scst_tgt/devices: not a directory", false},
		{"zram without", map[string]string{"/sys/class/block/zram0/backing_dev": "none\n"}, "", false},
		{"swaps cannot be read", map[string]string{"/proc/swaps/x": ""}, "cannot determine whether nvme3n2 is swapped to: read /proc/swaps: is a directory", false},
		{"mounts of process 1 cannot be read", map[string]string{"/proc/1/mountinfo/x": ""}, "cannot determine whether nvme3n2 is mounted: read /proc/1/mountinfo: is a directory", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := aDisk()
			for name := range c.files {
				delete(files, filepath.Dir(name)) // a directory instead of a file
			}
			h := tree(t, with(files, c.files))
			err := h.InUse(h.DiskAt(disk))
			var use *sysfs.Use
			switch {
			case c.want == "":
				if err != nil {
					t.Errorf("in use: %v", err)
				}
			case !errors.As(err, &use) || err.Error() != c.want || use.ByHost != c.byHost || (use.Unread != nil) != strings.Contains(c.want, "cannot determine"):
				t.Errorf("in use: %+v, want %s", err, c.want)
			}
		})
	}
	h := tree(t, nil)
	if err := h.InUse(h.DiskAt(disk)); err == nil || !strings.Contains(err.Error(), "read /proc/self/mountinfo") {
		t.Errorf("without procfs: %v", err)
	}
}

// TestInUseOfAPartition checks that a claim on the disk counts for its partitions.
func TestInUseOfAPartition(t *testing.T) {
	h := tree(t, with(aDisk(), map[string]string{disk + "/holders/dm-0": ""}))
	if err := h.InUse(h.DiskAt(part)); err == nil || err.Error() != "nvme3n2 is part of dm-0" {
		t.Errorf("in use: %v", err)
	}
}

// exportsOf returns an export of a name by each kind of target.
func exportsOf(name string) map[string]map[string]string {
	return map[string]map[string]string{
		"nvmet":  {nvmetNS + "enable": "1\n", nvmetNS + "device_path": name + "\n"},
		"fileio": {fileio + "enable": "1\n", fileio + "info": "TCM FILEIO ID: 0        File: " + name + "  Size: 0  Mode: O_DSYNC Async: 0\n", fileio + "udev_path": "note\n"},
		"pscsi":  {"/sys/kernel/config/target/core/pscsi_0/d/enable": "1\n", "/sys/kernel/config/target/core/pscsi_0/d/udev_path": name + "\n"},
		"usb":    {gadget + "mass_storage.0/lun.0/file": name + "\n"},
		"scst":   {"/sys/kernel/scst_tgt/devices/d/filename": name + "\n[key]\n"},
	}
}

// TestExported checks each name with which a target may have opened the disk. DIR is a directory outside /dev, and NODE
// the real location of the disk's node.
func TestExported(t *testing.T) {
	for _, c := range []struct {
		name, opened string
		files        map[string]string
		want         string // the target that exports it, empty for another disk, "?" if unknown
	}{
		{"its name", "/dev/nvme3n2", nil, "nvme3n2"},
		{"its partition", "/dev/nvme3n2p1", nil, "nvme3n2p1"},
		{"its generic node", "/dev/ng4n2", nil, "ng4n2"},
		{"its controller", "/dev/nvme4", nil, "nvme4"},
		{"udev's link", "/dev/disk/by-id/it", nil, "nvme3n2"},
		{"with slashes", "//dev//nvme3n2", nil, "nvme3n2"},
		{"with dots", "/dev/./disk/../nvme3n2", nil, "nvme3n2"},
		{"with a slash behind", "/dev/nvme3n2/", nil, "nvme3n2"},
		{"the /dev of the host in a container", "/host/dev/nvme3n2", nil, "nvme3n2"},
		{"a link there", "/host/dev/disk/by-id/it", nil, "nvme3n2"},
		{"without a directory", "nvme3n2", nil, "nvme3n2"},
		{"relative", "dev/nvme3n2", nil, "nvme3n2"},
		{"a link elsewhere", "DIR/disk1", map[string]string{"disk1": "-> NODE"}, "nvme3n2"},
		{"a link to a link elsewhere", "DIR/luns/disk1", map[string]string{"luns/disk1": "-> ../it", "it": "-> NODE"}, "nvme3n2"},
		{"a link elsewhere, with slashes", "DIR//./disk1/", map[string]string{"disk1": "-> NODE"}, "nvme3n2"},
		{"the node elsewhere", "DIR/disk1", map[string]string{"disk1": "SAME"}, "nvme3n2"},
		{"a name that only another mount namespace has", "/var/luns/one", nil, "?"},
		{"a name whose node was removed", "/dev/export0", nil, "?"},
		{"a link to nothing", "DIR/dangling", map[string]string{"dangling": "-> nowhere"}, "?"},
		{"a link in a circle", "DIR/circle", map[string]string{"circle": "-> circle"}, "?"},
		{"a directory", "/dev/disk", nil, "?"},
		{"the name of another disk, in a directory that is not here", "DIR/luns/sda", nil, "?"},
		{"a link to nothing, with its name", "DIR/nvme3n2", map[string]string{"nvme3n2": "-> nowhere"}, "nvme3n2"},

		{"another", "/dev/sda", nil, ""},
		{"a link to another", "/dev/disk/by-id/other", nil, ""},
		{"another, in a container", "/host/dev/sda", nil, ""},
		{"a link to another, with the name of ours", "DIR/nvme3n2", map[string]string{"nvme3n2": "-> OTHER"}, ""},
		{"another controller whose node is not here", "/dev/nvme5", nil, ""},
		{"a file", "DIR/image", map[string]string{"image": "data"}, ""},
	} {
		dir := t.TempDir()
		opened := strings.ReplaceAll(c.opened, "DIR", dir)
		for target, files := range exportsOf(opened) {
			if target != "nvmet" && c.name != "its name" && c.name != "a name that only another mount namespace has" || target == "pscsi" && c.want == "?" { // these backends claim the disk
				continue
			}
			t.Run(target+"/"+c.name, func(t *testing.T) {
				h := tree(t, with(aDisk(), files))
				for name, text := range c.files {
					if text == "SAME" { // like a bind mount of the node
						if err := os.Link(h.Path("/dev/nvme3n2"), filepath.Join(dir, name)); err != nil {
							t.Fatal(err)
						}
						continue
					}
					put(t, dir, name, strings.NewReplacer("NODE", h.Path("/dev/nvme3n2"), "OTHER", h.Path("/dev/sda")).Replace(text))
				}
				err := h.InUse(h.DiskAt(disk))
				var use *sysfs.Use
				errors.As(err, &use)
				switch c.want {
				case "":
					if err != nil {
						t.Errorf("in use: %v", err)
					}
				case "?":
					if use == nil || use.Unread == nil || !strings.Contains(err.Error(), fmt.Sprintf("has opened %q, which metalplug cannot see; export", opened)) {
						t.Errorf("in use: %v", err)
					}
				default:
					if use == nil || use.Unread != nil || !use.ByHost || !strings.HasPrefix(err.Error(), c.want+" is exported by the ") {
						t.Errorf("in use: %v", err)
					}
				}
			})
		}
	}
}

// TestExportedByAHiddenName uses a name below /var that does not exist in the sandbox. It counts for every disk that it
// could name, and the reason names the export.
func TestExportedByAHiddenName(t *testing.T) {
	const hidden = "/var/lib/target/disk1"
	file := func(size, bound string) map[string]string {
		return map[string]string{
			fileio + "enable": "1\n", fileio + "udev_path": hidden + "\n", fileio + "attrib/max_write_same_len": bound + "\n",
			fileio + "info": "TCM FILEIO ID: 0        File: " + hidden + "  Size: " + size + "  Mode: O_DSYNC Async: 0\n",
		}
	}
	plain := with(aDisk(), map[string]string{ // sda, for which the tree has no other files
		"/sys/devices/sda/subsystem": "-> ../../class/block", "/sys/devices/sda/holders/": "", "/proc/1/mountinfo": "",
	})
	for _, c := range []struct {
		name        string
		files       map[string]string
		nvme, other bool // whether each disk counts as exported
	}{
		{"a regular file", file("1073741824", "4096"), false, false},
		{"a block device", file("0", "65535"), true, true},
		{"a block device with a size", file("1073741824", "65535"), true, true},
		{"a block device with another bound", file("0", "4096"), true, true},
		{"a file with another bound", file("1073741824", "8192"), true, true},
		{"a file without the attribute", map[string]string{fileio + "enable": "1\n", fileio + "info": "File: " + hidden + "  Size: 4096  Mode: O_DSYNC\n"}, true, true},
		{"iblock, which claims", map[string]string{iblock + "enable": "1\n", iblock + "udev_path": hidden + "\n", iblock + "info": "Major: 0 Minor: 0\n"}, false, false},
		{"a controller of NVMe", map[string]string{nvmet + "passthru/enable": "1\n", nvmet + "passthru/device_path": hidden + "\n"}, true, false},
		{"a namespace of NVMe", map[string]string{nvmetNS + "enable": "1\n", nvmetNS + "device_path": hidden + "\n"}, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := tree(t, with(plain, c.files))
			for sysPath, want := range map[string]bool{disk: c.nvme, "/sys/devices/sda": c.other} {
				err := h.InUse(h.DiskAt(sysPath))
				if (err != nil) != want || want && !strings.Contains(err.Error(), fmt.Sprintf("has opened %q, which metalplug cannot see", hidden)) {
					t.Errorf("%s: %v", sysPath, err)
				}
			}
		})
	}
}

// A node that mknod created refers to the disk, whatever its name is. LIO's iblock shows the number itself.
func TestExportedByNumber(t *testing.T) {
	shown := func(number string) map[string]string {
		major, minor, _ := strings.Cut(number, ":")
		return map[string]string{iblock + "enable": "1\n", iblock + "udev_path": "/gone\n", iblock + "info": "iBlock device: x  UDEV PATH: /gone  readonly: 0\n        Major: " + major + " Minor: " + minor + "  CLAIMED: IBLOCK\n"}
	}
	for number, want := range map[string]string{"259:3": "nvme3n2", "259:4": "nvme3n2p1", "245:4": "", "259:33": ""} {
		h := tree(t, with(aDisk(), shown(number)))
		if err := h.InUse(h.DiskAt(disk)); (err != nil) != (want != "") || err != nil && !strings.HasPrefix(err.Error(), want+" is exported by the SCSI target iblock_1/disk") {
			t.Errorf("%s: %v", number, err)
		}
	}
	for _, c := range []struct {
		mode  uint32
		major uint32
		minor uint32
		want  string
	}{
		{unix.S_IFBLK, 259, 3, "nvme3n2"},
		{unix.S_IFBLK, 259, 4, "nvme3n2p1"},
		{unix.S_IFCHR, 245, 4, "nvme4"},
		{unix.S_IFCHR, 242, 2, "ng4n2"},
		{unix.S_IFBLK, 8, 0, ""},
		{unix.S_IFCHR, 259, 3, ""}, // a character device with that number is another device
	} {
		dir := t.TempDir()
		node, link := filepath.Join(dir, "export0"), filepath.Join(dir, "link")
		if err := unix.Mknod(node, c.mode|0o600, int(unix.Mkdev(c.major, c.minor))); err != nil {
			need.Lacks(t, "root", "no node can be made here: %v", err)
		}
		if err := os.Symlink("export0", link); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{node, link} {
			for target, files := range exportsOf(name) {
				h := tree(t, with(aDisk(), files))
				if err := h.InUse(h.DiskAt(disk)); (err != nil) != (c.want != "") || err != nil && !strings.HasPrefix(err.Error(), c.want+" is exported by ") {
					t.Errorf("%s of %d:%d: %v, want %s", target, c.major, c.minor, err, c.want)
				}
			}
		}
	}
}

// A target continues to serve after configfs is unmounted, or after another file system is mounted over it.
func TestHiddenExports(t *testing.T) {
	for _, c := range []struct {
		name, module, refs, dir string
		want                    string
	}{
		{"nvmet at work", "nvmet", "2\n", "", "module nvmet is in use, and /sys/kernel/config/nvmet does not exist"},
		{"nvmet at work, another directory there", "nvmet", "2\n", "/sys/kernel/config/target/", "module nvmet is in use"},
		{"nvmet loaded", "nvmet", "0\n", "", ""},
		{"nvmet built in, or not to be unloaded", "nvmet", "", "", "module nvmet is in use"},
		{"nvmet shown", "nvmet", "2\n", "/sys/kernel/config/nvmet/", ""},
		{"LIO at work", "target_core_mod", "5\n", "", "module target_core_mod is in use, and /sys/kernel/config/target does not exist"},
		{"LIO shown", "target_core_mod", "5\n", "/sys/kernel/config/target/", ""},
		{"USB", "usb_f_mass_storage", "1\n", "", "module usb_f_mass_storage is in use"},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := with(aDisk(), map[string]string{"/sys/module/" + c.module + "/": "", "/sys/kernel/config/": ""})
			if c.refs != "" {
				files["/sys/module/"+c.module+"/refcnt"] = c.refs
			}
			if c.dir != "" {
				files[c.dir] = ""
			}
			h := tree(t, files)
			err := h.InUse(h.DiskAt(disk))
			if c.want == "" {
				if err != nil {
					t.Errorf("in use: %v", err)
				}
				return
			}
			var use *sysfs.Use
			if !errors.As(err, &use) || use.Unread == nil || !strings.Contains(err.Error(), c.want) || !strings.HasSuffix(err.Error(), `run "mount -t configfs none /sys/kernel/config", then restart metalplugd`) {
				t.Errorf("in use: %v", err)
			}
		})
	}
}
