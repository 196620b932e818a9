// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/metalplug/metalplug/cgroup"
)

// TestTwins: who has the other node of an NVMe namespace open has the disk, and the kernel's exclusive open sees
// neither by the other.
func TestTwins(t *testing.T) {
	sys := t.TempDir()
	controller := filepath.Join(sys, "devices/pci0000:00/0000:00:01.0/nvme/nvme1")
	for name, number := range map[string]string{
		"nvme1n1": "259:1", "ng1n1": "247:1", "nvme1n2": "259:2", "nvme1n1/nvme1n1p1": "259:3",
	} {
		dir, kind := filepath.Join(controller, name), "block"
		if name == "ng1n1" {
			kind = "char"
		}
		err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "dev"), []byte(number+"\n"), 0o600),
			os.MkdirAll(filepath.Join(sys, "dev", kind), 0o755), os.Symlink(dir, filepath.Join(sys, "dev", kind, number)))
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name string
		of   cgroup.Number
		want []cgroup.Number
	}{
		{"of a disk", cgroup.Number{Block: true, Major: 259, Minor: 1}, []cgroup.Number{{Major: 247, Minor: 1}}},
		{"of a generic node", cgroup.Number{Major: 247, Minor: 1}, []cgroup.Number{{Block: true, Major: 259, Minor: 1}}},
		{"of a disk that has none", cgroup.Number{Block: true, Major: 259, Minor: 2}, nil},
		{"of a partition", cgroup.Number{Block: true, Major: 259, Minor: 3}, nil},
		{"of nothing", cgroup.Number{Major: 1, Minor: 3}, nil},
	} {
		if got := (&hands{sysfs: sys}).twins(test.of); !slices.Equal(got, test.want) {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}
