// SPDX-License-Identifier: Apache-2.0

package helper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// TestReaching checks that a process with the controller, the generic node or a partition of a disk open counts as a
// holder of the disk.
func TestReaching(t *testing.T) {
	root := t.TempDir()
	controller := filepath.Join(root, "devices/pci0000:00/0000:00:01.0/nvme/nvme4")
	for name, dev := range map[string][3]string{
		"": {"nvme", "char", "241:4"}, "nvme3n2": {"block", "block", "259:1"}, "ng4n2": {"nvme-generic", "char", "242:2"},
		"nvme3n2/nvme3n2p1": {"block", "block", "259:2"}, "nvme3n1": {"block", "block", "259:4"},
	} {
		dir := filepath.Join(controller, name)
		err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "dev"), []byte(dev[2]+"\n"), 0o600),
			os.Symlink("/class/"+dev[0], filepath.Join(dir, "subsystem")),
			os.MkdirAll(filepath.Join(root, "dev", dev[1]), 0o755), os.Symlink(dir, filepath.Join(root, "dev", dev[1], dev[2])))
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(controller, "nvme3n2/nvme3n2p1/partition"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := &client{sysfs: sysfs.Tree{Sys: root}}
	for _, c := range []struct {
		of   cgroup.Number
		want string
	}{
		{cgroup.Number{Block: true, Major: 259, Minor: 1}, "[b 259:1 c 241:4 c 242:2 b 259:2]"},
		{cgroup.Number{Major: 242, Minor: 2}, "[c 242:2 c 241:4 b 259:1 b 259:2]"},
		{cgroup.Number{Block: true, Major: 259, Minor: 4}, "[b 259:4 c 241:4]"},
		{cgroup.Number{Major: 1, Minor: 3}, "[c 1:3]"},
	} {
		numbers, paths, err := h.reaching(c.of)
		slices.SortFunc(numbers[1:], func(a, b cgroup.Number) int {
			order := []string{"c 241:4", "c 242:2", "b 259:1", "b 259:2"}
			return slices.Index(order, a.String()) - slices.Index(order, b.String())
		})
		if got := fmt.Sprint(numbers); got != c.want || err != nil || len(paths) > 0 && len(paths) != len(numbers) {
			t.Errorf("%v is reached by %s at %q, %v; want %s", c.of, got, paths, err, c.want)
		}
	}
	if err := os.WriteFile(filepath.Join(controller, "dev"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if numbers, _, err := h.reaching(cgroup.Number{Block: true, Major: 259, Minor: 1}); err == nil {
		t.Errorf("without the number of its controller a disk is reached by %v", numbers)
	}
}
