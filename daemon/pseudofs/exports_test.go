// SPDX-License-Identifier: Apache-2.0

package pseudofs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// sysfs makes a tree of files; "-> " begins where a link leads to.
func sysfs(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(name), 0o755)
		if target, link := strings.CutPrefix(text, "-> "); link {
			err = errors.Join(err, os.Symlink(target, name))
		} else {
			err = errors.Join(err, os.WriteFile(name, []byte(text), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestExports(t *testing.T) {
	const (
		namespace = "kernel/config/nvmet/subsystems/nqn.1/namespaces/1/"
		file      = "kernel/config/target/core/fileio_0/disk/"
		block     = "kernel/config/target/core/iblock_1/disk/"
		gadget    = "kernel/config/usb_gadget/g1/functions/"
		status    = "Status: ACTIVATED  Max Queue Depth: 128  SectorSize: 512  HwMaxSectors: 16384\n"
	)
	for _, c := range []struct {
		name  string
		files map[string]string
		want  []Export
	}{
		{"no configfs", nil, nil},
		{"no target", map[string]string{"kernel/config/nvmet/hosts/x": "", "kernel/config/target/version": "Target Engine Core"}, nil},
		{"an NVMe namespace", map[string]string{namespace + "enable": "1\n", namespace + "device_path": "/dev/nvme0n1\n"}, []Export{
			{"the NVMe subsystem nqn.1", "/dev/nvme0n1"},
		}},
		{"one that is not enabled", map[string]string{namespace + "enable": "0\n", namespace + "device_path": "/dev/nvme0n1\n"}, nil},
		{"a controller", map[string]string{"kernel/config/nvmet/subsystems/nqn.1/passthru/enable": "1\n", "kernel/config/nvmet/subsystems/nqn.1/passthru/device_path": "/dev/nvme0\n"}, []Export{
			{"the NVMe subsystem nqn.1", "/dev/nvme0"},
		}},
		{"a file of SCSI", map[string]string{
			file + "enable": "1\n", file + "udev_path": "", file + "info": status + "        TCM FILEIO ID: 0        File: /dev/a b  Size: 1024  Mode: O_DSYNC Async: 0\n",
		}, []Export{{"the SCSI target fileio_0/disk", "/dev/a b"}}},
		{"a disk of SCSI", map[string]string{
			block + "enable": "1\n", block + "udev_path": "/dev/sdb\n",
			block + "info": status + "        iBlock device: sdb  UDEV PATH: /dev/disk/by-id/b  readonly: 0\n        Major: 8 Minor: 16  CLAIMED: IBLOCK\n",
		}, []Export{{"the SCSI target iblock_1/disk", "/dev/sdb"}, {"the SCSI target iblock_1/disk", "/dev/disk/by-id/b"}}},
		{"an object that is not set up", map[string]string{block + "enable": "0\n", block + "udev_path": "/dev/sdb\n"}, nil},
		{"a disk to whoever is plugged in by USB", map[string]string{
			gadget + "mass_storage.0/lun.0/file": "/dev/nvme0n1\n", gadget + "mass_storage.0/lun.1/file": "\n",
			gadget + "mass_storage.0/stall": "1\n", gadget + "acm.0/port_num": "0\n",
		}, []Export{{"the USB gadget g1", "/dev/nvme0n1"}}},
		{"a disk over RDMA", map[string]string{
			"class/rnbd-server/ctl/devices/nvme0n1/block_dev":            "-> ../../../../class/block/nvme0n1",
			"class/rnbd-server/ctl/devices/nvme0n1/sessions/a/read_only": "0\n",
		}, []Export{{"the RNBD server", "/dev/nvme0n1"}}},
		{"groups of ports", map[string]string{"kernel/config/target/core/alua/lu_gps/default_lu_gp/members": "", "kernel/config/target/core/fileio_0/hba_info": "x"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := Exports(sysfs(t, c.files)); err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
		})
	}
	if got, err := Exports("/nowhere"); got != nil || err != nil {
		t.Errorf("without configfs: %+v, %v", got, err)
	}
	// What cannot be read could be anything.
	dir := sysfs(t, map[string]string{namespace + "enable/x": ""})
	var cause *fs.PathError
	if _, err := Exports(dir); !errors.As(err, &cause) || cause.Path != filepath.Join(dir, namespace+"enable") {
		t.Errorf("not readable: %v", err)
	}
}
