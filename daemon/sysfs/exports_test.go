// SPDX-License-Identifier: Apache-2.0

package sysfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// tree creates the three directories with files. "-> " begins the target of a link. A name that ends in "/" is a
// directory.
func tree(t *testing.T, files map[string]string) *sysfs.Tree {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		put(t, dir, name, text)
	}
	at := sysfs.At(dir)
	return &at
}

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	directory := strings.HasSuffix(name, "/")
	name = filepath.Join(dir, name)
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	target, link := strings.CutPrefix(text, "-> ")
	switch {
	case directory:
		err = errors.Join(err, os.MkdirAll(name, 0o755))
	case link:
		err = errors.Join(err, os.Symlink(target, name))
	default:
		err = errors.Join(err, os.WriteFile(name, []byte(text), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The directories of the targets in the kernel.
const (
	nvmet   = "/sys/kernel/config/nvmet/subsystems/nqn.1/"
	nvmetNS = nvmet + "namespaces/1/"
	fileio  = "/sys/kernel/config/target/core/fileio_0/disk/"
	iblock  = "/sys/kernel/config/target/core/iblock_1/disk/"
	gadget  = "/sys/kernel/config/usb_gadget/g1/functions/"
)

// TestExports checks which files of the targets export a disk.
func TestExports(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string // empty if the disk is not exported
	}{
		{"no target", map[string]string{"/sys/kernel/config/nvmet/hosts/x": "", "/sys/kernel/config/target/version": "Target Engine Core"}, ""},
		{"a namespace that is not enabled", map[string]string{nvmetNS + "enable": "0\n", nvmetNS + "device_path": "/dev/nvme3n2\n"}, ""},
		{"a controller", map[string]string{nvmet + "passthru/enable": "1\n", nvmet + "passthru/device_path": "/dev/nvme4\n"}, "nvme4 is exported by the NVMe subsystem nqn.1"},
		{"a file of SCSI", map[string]string{
			fileio + "enable": "1\n", fileio + "udev_path": "note", fileio + "info": "TCM FILEIO ID: 0        File: /dev/nvme3n2  Size: 1024  Mode: O_DSYNC Async: 0\n",
		}, "nvme3n2 is exported by the SCSI target fileio_0/disk"},
		{"a disk of SCSI without a number", map[string]string{
			iblock + "enable": "1\n", iblock + "udev_path": "/dev/nvme3n2\n", iblock + "info": "Major: 0 Minor: 0\n",
		}, "nvme3n2 is exported by the SCSI target iblock_1/disk"},
		{"memory", map[string]string{"/sys/kernel/config/target/core/rd_mcp_0/ram/enable": "1\n", "/sys/kernel/config/target/core/rd_mcp_0/ram/udev_path": "/dev/nvme3n2\n"}, ""},
		{"an object that is not set up", map[string]string{iblock + "enable": "0\n", iblock + "udev_path": "/dev/nvme3n2\n"}, ""},
		{"a disk over USB", map[string]string{
			gadget + "mass_storage.0/lun.0/file": "\n", gadget + "mass_storage.0/lun.1/file": "/dev/nvme3n2\n",
			gadget + "mass_storage.0/stall": "1\n", gadget + "acm.0/port_num": "0\n",
		}, "nvme3n2 is exported by the USB gadget g1"},
		{"another function over USB", map[string]string{gadget + "acm.0/lun.0/file": "/dev/nvme3n2\n"}, ""},
		{"a disk over RDMA", map[string]string{
			"/sys/class/rnbd-server/ctl/devices/nvme3n2/block_dev":            "-> ../../../../class/block/nvme3n2",
			"/sys/class/rnbd-server/ctl/devices/nvme3n2/sessions/a/read_only": "0\n",
		}, "nvme3n2 is exported by the RNBD server"},
		{"a disk of SCST", map[string]string{
			"/sys/kernel/scst_tgt/devices/disk1/filename": "/dev/nvme3n2\n[key]\n", "/sys/kernel/scst_tgt/devices/tape/type": "1\n",
		}, "nvme3n2 is exported by the SCST device disk1"},
		// A file that cannot be read could contain anything.
		{"an unreadable file", map[string]string{nvmetNS + "enable/x": ""}, "cannot determine whether nvme3n2 is exported: read " + nvmetNS + "enable: is a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := tree(t, with(aDisk(), c.files))
			err := h.InUse(h.DiskAt(disk))
			if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("in use: %v, want %q", err, c.want)
			}
		})
	}
}
