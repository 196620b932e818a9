// SPDX-License-Identifier: Apache-2.0

package sysfs_test

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// nvmeTree creates controllers, subsystems and devices below them. Each line has a path below /sys/devices, a class,
// and attributes. The line of a subsystem names its controllers.
func nvmeTree(t *testing.T, lines string) *sysfs.Tree {
	t.Helper()
	files := make(map[string]string)
	for line := range strings.Lines(lines) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		p, class := "/sys/devices/"+fields[0], fields[1]
		files["/sys/class/"+class+"/"] = ""
		files[p+"/subsystem"] = relative(t, p, "/sys/class/"+class)
		files["/sys/class/"+class+"/"+path.Base(p)] = relative(t, "/sys/class/"+class, p)
		for _, attr := range fields[2:] {
			name, value, _ := strings.Cut(attr, "=")
			if name == "of" {
				files[p+"/"+path.Base(value)] = relative(t, p, "/sys/devices/"+value)
				continue
			}
			files[p+"/"+name] = value + "\n"
		}
	}
	return tree(t, files)
}

func relative(t *testing.T, from, to string) string {
	t.Helper()
	rel, err := filepath.Rel(from, to)
	if err != nil {
		t.Fatal(err)
	}
	return "-> " + rel
}

func bases(paths []string) string {
	names := make([]string, len(paths))
	for i, p := range paths {
		names[i] = path.Base(p)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

const (
	// A drive was plugged in again while its old node was open. The kernel has kept subsystem 3, in which namespace
	// instance 1 is in use, and created controller 4.
	again = `
		a/nvme/nvme4 nvme
		a/nvme/nvme4/nvme3n2 block hidden=0 nsid=1 wwid=eui.01
		a/nvme/nvme4/ng4n2 nvme-generic
		virtual/nvme-subsystem/nvme-subsys3 nvme-subsystem of=a/nvme/nvme4`
	// The same with a second namespace, and a drive whose numbers match the names by chance.
	crossed = again + `
		a/nvme/nvme4/nvme3n12 block hidden=0 nsid=2 wwid=eui.02
		a/nvme/nvme4/ng4n12 nvme-generic
		b/nvme/nvme3 nvme
		b/nvme/nvme3/nvme4n2 block hidden=0 nsid=1 wwid=eui.03
		b/nvme/nvme3/ng3n2 nvme-generic
		virtual/nvme-subsystem/nvme-subsys4 nvme-subsystem of=b/nvme/nvme3`
	// Two controllers with a shared namespace, and a private namespace each with the same ID.
	multipath = `
		a/nvme/nvme0 nvme
		b/nvme/nvme1 nvme
		virtual/nvme-subsystem/nvme-subsys5 nvme-subsystem of=a/nvme/nvme0 of=b/nvme/nvme1
		virtual/nvme-subsystem/nvme-subsys5/nvme5n1 block hidden=0 nsid=1 wwid=eui.11
		virtual/nvme-subsystem/nvme-subsys5/ng5n1 nvme-generic
		a/nvme/nvme0/nvme5c0n1 block hidden=1 nsid=1 wwid=eui.11
		b/nvme/nvme1/nvme5c1n1 block hidden=1 nsid=1 wwid=eui.11
		virtual/nvme-subsystem/nvme-subsys5/nvme5n2 block hidden=0 nsid=2 wwid=eui.12
		a/nvme/nvme0/nvme5c0n2 block hidden=1 nsid=2 wwid=eui.12
		virtual/nvme-subsystem/nvme-subsys5/nvme5n3 block hidden=0 nsid=2 wwid=eui.13
		b/nvme/nvme1/nvme5c1n3 block hidden=1 nsid=2 wwid=eui.13`
)

// TestNVMeTopology checks that parents, attributes and links show which devices belong together.
func TestNVMeTopology(t *testing.T) {
	for _, c := range []struct {
		name, tree  string
		controllers map[string]string // controllers of each namespace
		generic     map[string]string
		disks       map[string]string // disks of each controller
		without     map[string]string // namespaces of the controller that are no disks
		siblings    map[string]string
	}{
		{
			"plugged in again", again,
			map[string]string{"nvme3n2": "nvme4"},
			map[string]string{"nvme3n2": "ng4n2"},
			map[string]string{"nvme4": "nvme3n2"},
			map[string]string{"nvme4": ""},
			map[string]string{"nvme4": "nvme4"},
		},
		{
			"two drives with each other's numbers", crossed,
			map[string]string{"nvme3n2": "nvme4", "nvme4n2": "nvme3"},
			map[string]string{"nvme3n2": "ng4n2", "nvme3n12": "ng4n12", "nvme4n2": "ng3n2"},
			map[string]string{"nvme4": "nvme3n12 nvme3n2", "nvme3": "nvme4n2"},
			map[string]string{"nvme4": "", "nvme3": ""},
			nil,
		},
		{
			"a kernel that gives generic nodes a namespace ID", strings.ReplaceAll(strings.ReplaceAll(crossed, "ng4n2 nvme-generic", "ng4n7 nvme-generic nsid=1"), "ng4n12 nvme-generic", "ng4n2 nvme-generic nsid=2"),
			nil,
			map[string]string{"nvme3n2": "ng4n7", "nvme3n12": "ng4n2"},
			nil,
			map[string]string{"nvme4": ""},
			nil,
		},
		{
			"key-value pairs", again + "\na/nvme/nvme4/ng4n5 nvme-generic\na/nvme/nvme4/nvme3n5 block hidden=1 nsid=5",
			nil,
			map[string]string{"nvme3n2": "ng4n2"},
			map[string]string{"nvme4": "nvme3n2"},
			map[string]string{"nvme4": "ng4n5 nvme3n5"},
			nil,
		},
		{
			"no generic node yet", strings.ReplaceAll(again, "ng4n2 nvme-generic", "hwmon3 hwmon"),
			nil,
			map[string]string{"nvme3n2": ""},
			map[string]string{"nvme4": "nvme3n2"},
			nil, nil,
		},
		{
			"multipath", multipath,
			map[string]string{"nvme5n1": "nvme0 nvme1", "nvme5n2": "nvme0", "nvme5n3": "nvme1"},
			map[string]string{"nvme5n1": "ng5n1", "nvme5n2": ""},
			map[string]string{"nvme0": "nvme5n1 nvme5n2", "nvme1": "nvme5n1 nvme5n3"},
			map[string]string{"nvme0": "", "nvme1": ""},
			map[string]string{"nvme0": "nvme0 nvme1", "nvme1": "nvme0 nvme1"},
		},
		{
			"multipath, paths with numbers of their own", strings.NewReplacer("nvme5c0n1 ", "nvme9c7n4 ", "nvme5c1n1 ", "nvme9c8n9 ").Replace(multipath),
			map[string]string{"nvme5n1": "nvme0 nvme1"},
			nil,
			map[string]string{"nvme0": "nvme5n1 nvme5n2", "nvme1": "nvme5n1 nvme5n3"},
			nil, nil,
		},
		{
			"multipath, paths without attributes", strings.NewReplacer(" hidden=1 nsid=1 wwid=eui.11", " hidden=1", " hidden=1 nsid=2 wwid=eui.12", " hidden=1", " hidden=1 nsid=2 wwid=eui.13", " hidden=1").Replace(multipath),
			map[string]string{"nvme5n1": "nvme0 nvme1", "nvme5n2": "nvme0"},
			nil,
			map[string]string{"nvme0": "nvme5n1 nvme5n2", "nvme1": "nvme5n1 nvme5n3"},
			nil, nil,
		},
		{
			"multipath, a path whose disk is gone", strings.ReplaceAll(multipath, "virtual/nvme-subsystem/nvme-subsys5/nvme5n3 block hidden=0 nsid=2 wwid=eui.13", ""),
			nil, nil,
			map[string]string{"nvme1": "nvme5n1"},
			map[string]string{"nvme1": "nvme5c1n3"},
			nil,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := nvmeTree(t, c.tree)
			at := func(class, name string) string { return h.Resolve("/sys/class/" + class + "/" + name) }
			for name, want := range c.controllers {
				if got := bases(h.NVMeControllers(at("block", name))); got != want {
					t.Errorf("%s is reached by %q, want %q", name, got, want)
				}
			}
			for name, want := range c.generic {
				got := h.NVMeGeneric(at("block", name))
				if got != "" {
					got = path.Base(got)
				}
				if got != want {
					t.Errorf("%s has the generic node %q, want %q", name, got, want)
				}
			}
			for _, name := range slices.Sorted(maps.Keys(c.disks)) {
				disks, without := h.NVMeNamespaces(at("nvme", name))
				if bases(disks) != c.disks[name] || bases(without) != c.without[name] {
					t.Errorf("%s has the disks %q, and without a disk %q", name, disks, without)
				}
			}
			for name, want := range c.siblings {
				if got := bases(h.NVMeSiblings(at("nvme", name))); got != want {
					t.Errorf("with %s there are %q, want %q", name, got, want)
				}
			}
		})
	}
	h := nvmeTree(t, "a/sda block hidden=0")
	if h.IsNVMe("/sys/devices/a/sda") || h.NVMeControllers("/sys/devices/a/sda") != nil {
		t.Error("a SCSI disk is a namespace")
	}
}

// TestWrittenByPaths checks that writes to a disk with native multipathing are counted. Before Linux 6.4, only the paths to the
// disk had counters.
func TestWrittenByPaths(t *testing.T) {
	const head, stat = "/sys/devices/virtual/nvme-subsystem/nvme-subsys5/nvme5n1", "1 0 8 0 2 0 %d 0 0 0 0 0 0 7 0 0 0\n"
	for name, c := range map[string]struct {
		stats map[string]int
		want  uint64
	}{
		"the paths":                  {map[string]int{"a/nvme/nvme0/nvme5c0n1": 8, "b/nvme/nvme1/nvme5c1n1": 16}, 38},
		"the path to another disk":   {map[string]int{"a/nvme/nvme0/nvme5c0n2": 8}, 0},
		"the disk as well as a path": {map[string]int{"a/nvme/nvme0/nvme5c0n1": 8, strings.TrimPrefix(head, "/sys/devices/"): 24}, 31},
	} {
		tree := nvmeTree(t, multipath)
		for disk, sectors := range c.stats {
			if err := os.WriteFile(tree.Path("/sys/devices/"+disk+"/stat"), fmt.Appendf(nil, stat, sectors), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := sysfs.Written(tree, head); got != c.want {
			t.Errorf("%s: %d sectors, want %d", name, got, c.want)
		}
	}
	tree := nvmeTree(t, multipath)
	if err := os.Mkdir(tree.Path(head+"/stat"), 0o700); err != nil || sysfs.Written(tree, head) < sysfs.Uncounted {
		t.Errorf("a counter that cannot be read counts as no writes: %v", err)
	}
}
