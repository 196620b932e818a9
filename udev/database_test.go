// SPDX-License-Identifier: Apache-2.0

package udev_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/udev"
)

// TestReadDevice checks that sysfs and the database record are read as libudev reads them.
func TestReadDevice(t *testing.T) {
	root := t.TempDir()
	const disk, pci, net = "/sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1", "/sys/devices/pci0000:00/0000:01:00.0", "/sys/devices/virtual/net/lo"
	for name, text := range map[string]string{
		disk + "/uevent":                   "MAJOR=259\nMINOR=1\nDEVNAME=nvme0n1\nDEVTYPE=disk\nDISKSEQ=9\n",
		pci + "/uevent":                    "DRIVER=nvme\nPCI_CLASS=10802\nPCI_ID=1B36:0010\nPCI_SLOT_NAME=0000:01:00.0\n",
		net + "/uevent":                    "INTERFACE=lo\nIFINDEX=1\n",
		"/run/udev/data/b259:1":            "S:disk/by-id/nvme-x\nS:disk/by-path/y\nL:100\nI:123\nE:ID_MODEL=A B=C\nE:DEVTYPE=other\nG:systemd\nQ:systemd\nV:1\nnonsense\nE:\n",
		"/run/udev/data/+pci:0000:01:00.0": "E:ID_VENDOR_FROM_DATABASE=Red Hat\n",
		"/run/udev/data/n1":                "E:ID_MM_CANDIDATE=1\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(root+name), 0o755), os.WriteFile(root+name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for dir, subsystem := range map[string]string{disk: "block", pci: "pci", net: "net"} {
		if err := os.Symlink("/x/"+subsystem, root+dir+"/subsystem"); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		path, subsystem, node string
		want                  map[string]string
	}{
		{disk, "block", "/dev/nvme0n1", map[string]string{
			"DEVNAME": "/dev/nvme0n1", "ID_MODEL": "A B=C", "DEVLINKS": "/dev/disk/by-id/nvme-x /dev/disk/by-path/y", "TAGS": ":systemd:",
			"CURRENT_TAGS": ":systemd:", "SUBSYSTEM": "block", "MAJOR": "259", "DEVTYPE": "other",
		}},
		{pci, "pci", "", map[string]string{"PCI_ID": "1B36:0010", "ID_VENDOR_FROM_DATABASE": "Red Hat", "DRIVER": "nvme"}},
		{net, "net", "", map[string]string{"ID_MM_CANDIDATE": "1", "INTERFACE": "lo"}},
	} {
		d, err := udev.ReadDevice(root+"/sys", root+"/run", c.path)
		if err != nil || d.Subsystem != c.subsystem || d.DevNode != c.node || d.SysPath != c.path {
			t.Errorf("%s is %+v, %v", c.path, d, err)
		}
		for key, want := range c.want {
			if got := d.Properties.Value(key); got != want {
				t.Errorf("%s: %s is %q, want %q", c.path, key, got, want)
			}
		}
	}
	if _, err := udev.ReadDevice(root+"/sys", root+"/run", "/sys/devices/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a device that is not there: %v", err)
	}
	if err := os.WriteFile(root+"/run/udev/data/b259:1", []byte(strings.Repeat("E:A=B\n", 20000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := udev.ReadDevice(root+"/sys", root+"/run", disk); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a record without an end: %v", err)
	}
}
