// SPDX-License-Identifier: Apache-2.0

package pseudofs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// configfs makes a tree of files.
func configfs(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestExports(t *testing.T) {
	const (
		namespace = "nvmet/subsystems/nqn.1/namespaces/1/"
		file      = "target/core/fileio_0/disk/"
		block     = "target/core/iblock_1/disk/"
		status    = "Status: ACTIVATED  Max Queue Depth: 128  SectorSize: 512  HwMaxSectors: 16384\n"
	)
	for _, c := range []struct {
		name  string
		files map[string]string
		want  []Export
	}{
		{"no configfs", nil, nil},
		{"no target", map[string]string{"nvmet/hosts/x": "", "target/version": "Target Engine Core"}, nil},
		{"an NVMe namespace", map[string]string{namespace + "enable": "1\n", namespace + "device_path": "/dev/nvme0n1\n"}, []Export{
			{"the NVMe subsystem nqn.1", "/dev/nvme0n1"},
		}},
		{"one that is not enabled", map[string]string{namespace + "enable": "0\n", namespace + "device_path": "/dev/nvme0n1\n"}, nil},
		{"a controller", map[string]string{"nvmet/subsystems/nqn.1/passthru/enable": "1\n", "nvmet/subsystems/nqn.1/passthru/device_path": "/dev/nvme0\n"}, []Export{
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
		{"groups of ports", map[string]string{"target/core/alua/lu_gps/default_lu_gp/members": "", "target/core/fileio_0/hba_info": "x"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := Exports(configfs(t, c.files)); err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
		})
	}
	if got, err := Exports("/nowhere"); got != nil || err != nil {
		t.Errorf("without configfs: %+v, %v", got, err)
	}
	// What cannot be read could be anything.
	dir := configfs(t, map[string]string{namespace + "enable/x": ""})
	var cause *fs.PathError
	if _, err := Exports(dir); !errors.As(err, &cause) || cause.Path != filepath.Join(dir, namespace+"enable") {
		t.Errorf("not readable: %v", err)
	}
}
