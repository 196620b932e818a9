// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// tree creates the three directories with files. "-> " begins the target of a link. A name that ends in "/" is a
// directory.
func tree(t *testing.T, files map[string]string) *Tree {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		put(t, dir, name, text)
	}
	at := At(dir)
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

func TestExports(t *testing.T) {
	const status = "Status: ACTIVATED  Max Queue Depth: 128  SectorSize: 512  HwMaxSectors: 16384\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  []export
	}{
		{"no configfs", nil, nil},
		{"no target", map[string]string{"/sys/kernel/config/nvmet/hosts/x": "", "/sys/kernel/config/target/version": "Target Engine Core"}, nil},
		{"an NVMe namespace", map[string]string{nvmetNS + "enable": "1\n", nvmetNS + "device_path": "/dev/nvme0n1\n"}, []export{
			{by: "the NVMe subsystem nqn.1", name: "/dev/nvme0n1"},
		}},
		{"one that is not enabled", map[string]string{nvmetNS + "enable": "0\n", nvmetNS + "device_path": "/dev/nvme0n1\n"}, nil},
		{"a controller", map[string]string{nvmet + "passthru/enable": "1\n", nvmet + "passthru/device_path": "/dev/nvme0\n"}, []export{
			{by: "the NVMe subsystem nqn.1", name: "/dev/nvme0", reach: anyController},
		}},
		{"a file of SCSI", map[string]string{
			fileio + "enable": "1\n", fileio + "udev_path": "note", fileio + "info": status + "        TCM FILEIO ID: 0        File: /dev/a b  Size: 1024  Mode: O_DSYNC Async: 0\n",
		}, []export{{by: "the SCSI target fileio_0/disk", name: "/dev/a b"}}},
		{"a disk of SCSI, by its number", map[string]string{
			iblock + "enable": "1\n", iblock + "udev_path": "/dev/other\n",
			iblock + "info": status + "        iBlock device: sdb  UDEV PATH: /dev/disk/by-id/b  readonly: 0\n        Major: 8 Minor: 16  CLAIMED: IBLOCK\n",
		}, []export{{by: "the SCSI target iblock_1/disk", number: "8:16"}}},
		{"a disk of SCSI without a number", map[string]string{
			iblock + "enable": "1\n", iblock + "udev_path": "/dev/sdb\n", iblock + "info": status + "        Major: 0 Minor: 0\n",
		}, []export{{by: "the SCSI target iblock_1/disk", name: "/dev/sdb", reach: noDisk}}},
		{"memory", map[string]string{"/sys/kernel/config/target/core/rd_mcp_0/ram/enable": "1\n", "/sys/kernel/config/target/core/rd_mcp_0/ram/udev_path": "ram\n"}, nil},
		{"an object that is not set up", map[string]string{iblock + "enable": "0\n", iblock + "udev_path": "/dev/sdb\n"}, nil},
		{"a disk over USB", map[string]string{
			gadget + "mass_storage.0/lun.0/file": "/dev/nvme0n1\n", gadget + "mass_storage.0/lun.1/file": "\n",
			gadget + "mass_storage.0/stall": "1\n", gadget + "acm.0/port_num": "0\n",
		}, []export{{by: "the USB gadget g1", name: "/dev/nvme0n1"}}},
		{"a disk over RDMA", map[string]string{
			"/sys/class/rnbd-server/ctl/devices/nvme0n1/block_dev":            "-> ../../../../class/block/nvme0n1",
			"/sys/class/rnbd-server/ctl/devices/nvme0n1/sessions/a/read_only": "0\n",
		}, []export{{by: "the RNBD server", name: "/dev/nvme0n1"}}},
		{"a disk of SCST", map[string]string{
			"/sys/kernel/scst_tgt/devices/disk1/filename": "/dev/nvme0n1\n[key]\n", "/sys/kernel/scst_tgt/devices/tape/type": "1\n",
		}, []export{{by: "the SCST device disk1", name: "/dev/nvme0n1"}}},
		{"groups of ports", map[string]string{"/sys/kernel/config/target/core/alua/lu_gps/default_lu_gp/members": "", "/sys/kernel/config/target/core/fileio_0/hba_info": "x"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := exports(tree(t, c.files)); err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
		})
	}
	// A file that cannot be read could contain anything.
	h := tree(t, map[string]string{nvmetNS + "enable/x": ""})
	if _, err := exports(h); err == nil || err.Error() != "read "+nvmetNS+"enable: is a directory" {
		t.Errorf("not readable: %v", err)
	}
}
