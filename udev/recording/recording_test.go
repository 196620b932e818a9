// SPDX-License-Identifier: Apache-2.0

package recording_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/leak"
	"github.com/metalplug/metalplug/udev"
	"github.com/metalplug/metalplug/udev/recording"
)

const disk = `# a disk, the child first, as umockdev-record writes it
P: /devices/pci0000:00/0000:00:02.0/nvme/nvme0
N: nvme0
R: 0
U: nvme
L: 0
S: nvme-first
E: DEVPATH=/ignored
E: DEVNAME=/dev/nvme0
E: MAJOR=240
E: MINOR=0
E: NVME_TRTYPE=pcie
E: SUBSYSTEM=nvme
E: TAGS=:systemd:
A: model=A \"disk\"\t\\\303\244\n
A: power/control=auto\n
H: raw=00fF
L: device=../../../0000:00:02.0

P: /devices/pci0000:00/0000:00:02.0
E: SUBSYSTEM=pci
E: DRIVER=nvme
A: numa_node=1\n
L: driver=../../../bus/pci/drivers/nvme
L: iommu_group=../../../kernel/iommu_groups/7
F: /proc/self/mountinfo=21 1 259:1 / /\n
F: /proc/4242/
`

const partition = `
P: /devices/pci0000:00/0000:00:02.0/nvme/nvme0/nvme0n1/nvme0n1p1
N: nvme0n1p1=CAFE
E: SUBSYSTEM=block
E: DEVTYPE=partition
E: MAJOR=259
E: MINOR=1
E: DEVLINKS=/dev/disk/by-id/part /dev/disk/by-path/x

P: /devices/pci0000:00/0000:00:02.0/nvme/nvme0/nvme0n1
E: SUBSYSTEM=block
E: DEVTYPE=disk
E: DEVNAME=nvme0n1
E: ID_WWN=eui.1
E: MAJOR=259
E: MINOR=0
`

func mustParse(t *testing.T, text string) *recording.Recording {
	t.Helper()
	r, err := recording.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// listing returns the entries of a tree. Directories end in "/", links have their target, and files their content.
func listing(t *testing.T, root string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == root {
			return err
		}
		short := name[len(root)+1:]
		switch {
		case d.IsDir():
			found[short+"/"] = ""
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			found[short] = "-> " + target
			return err
		default:
			text, err := os.ReadFile(name)
			found[short] = string(text)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestWrite(t *testing.T) {
	root := t.TempDir()
	if err := mustParse(t, disk+partition).Write(root); err != nil {
		t.Fatal(err)
	}
	const nvme = "sys/devices/pci0000:00/0000:00:02.0/nvme/nvme0"
	want := map[string]string{
		"sys/devices/pci0000:00/0000:00:02.0/numa_node":   "1\n",
		"sys/devices/pci0000:00/0000:00:02.0/uevent":      "DRIVER=nvme\n",
		"sys/devices/pci0000:00/0000:00:02.0/subsystem":   "-> ../../../bus/pci",
		"sys/devices/pci0000:00/0000:00:02.0/driver":      "-> ../../../bus/pci/drivers/nvme",
		"sys/devices/pci0000:00/0000:00:02.0/iommu_group": "-> ../../../kernel/iommu_groups/7",
		"sys/bus/pci/devices/0000:00:02.0":                "-> ../../../devices/pci0000:00/0000:00:02.0",
		"sys/bus/pci/drivers/nvme/0000:00:02.0":           "-> ../../../../devices/pci0000:00/0000:00:02.0",
		"sys/kernel/iommu_groups/7/devices/0000:00:02.0":  "-> ../../../../devices/pci0000:00/0000:00:02.0",
		nvme + "/model":                 "A \"disk\"\t\\ä\n",
		nvme + "/power/control":         "auto\n",
		nvme + "/raw":                   "\x00\xff",
		nvme + "/device":                "-> ../../../0000:00:02.0",
		nvme + "/dev":                   "240:0\n",
		nvme + "/subsystem":             "-> ../../../../../class/nvme",
		nvme + "/uevent":                "DEVNAME=nvme0\nMAJOR=240\nMINOR=0\nNVME_TRTYPE=pcie\n",
		nvme + "/nvme0n1/nvme0n1p1/dev": "259:1\n",
		nvme + "/nvme0n1/uevent":        "DEVNAME=nvme0n1\nDEVTYPE=disk\nMAJOR=259\nMINOR=0\n",
		"sys/class/nvme/nvme0":          "-> ../../devices/pci0000:00/0000:00:02.0/nvme/nvme0",
		"sys/class/block/nvme0n1p1":     "-> ../../" + nvme[4:] + "/nvme0n1/nvme0n1p1",
		"sys/block/nvme0n1":             "-> ../" + nvme[4:] + "/nvme0n1",
		"sys/dev/block/259:0":           "-> ../../" + nvme[4:] + "/nvme0n1",
		"sys/dev/char/240:0":            "-> ../../" + nvme[4:],
		"dev/nvme0":                     "",
		"dev/nvme-first":                "-> nvme0",
		"dev/char/240:0":                "-> ../nvme0",
		"dev/block/259:1":               "-> ../nvme0n1p1",
		"dev/nvme0n1":                   "",
		"dev/nvme0n1p1":                 "",
		"dev/disk/by-id/part":           "-> ../../nvme0n1p1",
		"dev/disk/by-path/x":            "-> ../../nvme0n1p1",
		"proc/self/mountinfo":           "21 1 259:1 / /\n",
		"proc/4242/":                    "",
	}
	got := listing(t, root)
	for name, text := range want {
		if have, ok := got[name]; !ok || have != text {
			t.Errorf("%s is %q (there: %t), want %q", name, have, ok, text)
		}
	}
	if _, ok := got["sys/block/nvme0n1p1"]; ok {
		t.Error("/sys/block lists a partition")
	}
}

func TestDevices(t *testing.T) {
	devices := mustParse(t, disk+partition).Devices()
	var paths []string
	for _, d := range devices {
		paths = append(paths, strings.TrimPrefix(d.SysPath, "/sys/devices/pci0000:00/"))
	}
	want := []string{
		"0000:00:02.0", "0000:00:02.0/nvme/nvme0", "0000:00:02.0/nvme/nvme0/nvme0n1",
		"0000:00:02.0/nvme/nvme0/nvme0n1/nvme0n1p1",
	}
	if !slices.Equal(paths, want) {
		t.Errorf("devices %v, want %v", paths, want)
	}
	nvme := devices[1]
	if nvme.Subsystem != "nvme" || nvme.DevNode != "/dev/nvme0" {
		t.Errorf("device %+v", nvme)
	}
	properties := map[string]string{
		"DEVNAME": "/dev/nvme0", "DEVLINKS": "/dev/nvme-first",
		"MAJOR": "240", "MINOR": "0", "NVME_TRTYPE": "pcie", "SUBSYSTEM": "nvme", "TAGS": ":systemd:",
	}
	if nvme.Properties != udev.NewProperties(properties) {
		t.Errorf("properties %v, want %v", nvme.Properties, properties)
	}
	if d := devices[2]; d.DevNode != "/dev/nvme0n1" || d.Properties.Value("DEVNAME") != "/dev/nvme0n1" || d.DevType != "disk" {
		t.Errorf("a node that is named by DEVNAME alone: %+v", d)
	}
}

func TestUpdate(t *testing.T) {
	changedDisk := strings.Replace(disk, `A: numa_node=1\n`, `A: numa_node=0\n`, 1)
	unmounted := strings.Replace(disk, `21 1 259:1 / /\n`, ``, 1)
	for name, test := range map[string]struct {
		from, to string
		want     []string
	}{
		"nothing":   {disk, "# other\n" + disk, nil},
		"plug":      {disk, disk + partition, []string{"add nvme0n1", "add nvme0n1p1"}},
		"unplug":    {disk + partition, disk, []string{"remove nvme0n1p1", "remove nvme0n1"}},
		"attribute": {disk, changedDisk, []string{"change 0000:00:02.0"}},
		"property":  {disk + partition, disk + strings.Replace(partition, "eui.1", "eui.2", 1), []string{"change nvme0n1"}},
		"mounts":    {disk, unmounted, []string{"mounts"}},
		"file":      {disk, disk + "F: /proc/modules=x\n", []string{"overflow"}},
		"all":       {disk + partition, "", []string{"remove nvme0n1p1", "remove nvme0n1", "remove nvme0", "remove 0000:00:02.0", "mounts", "overflow"}},
	} {
		t.Run(name, func(t *testing.T) {
			root, fresh := t.TempDir(), t.TempDir()
			before, after := mustParse(t, test.from), mustParse(t, test.to)
			if err := before.Write(root); err != nil {
				t.Fatal(err)
			}
			events, err := before.Update(root, after)
			if err != nil {
				t.Fatal(err)
			}
			if got := brief(events); !slices.Equal(got, test.want) {
				t.Errorf("events %q, want %q", got, test.want)
			}
			if err := after.Write(fresh); err != nil {
				t.Fatal(err)
			}
			if got, want := listing(t, root), listing(t, fresh); !maps.Equal(got, want) {
				t.Errorf("the updated tree is\n%v\na new one is\n%v", got, want)
			}
		})
	}
}

func brief(events []udev.Event) []string {
	var list []string
	for _, e := range events {
		list = append(list, strings.TrimSuffix(e.Action+" "+filepath.Base("/"+e.Device.SysPath), " /"))
	}
	return list
}

// TestMain fails if a test leaves anything running.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
