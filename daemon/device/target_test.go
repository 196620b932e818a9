// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"path"
	"reflect"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
)

// Another namespace of the controller nvme2, and another one of the subsystem nvme-subsys3 with both controllers.
const (
	pci2    = "/devices/pci0000:64/0000:64:02.0/0000:65:00.0/nvme/nvme2"
	another = "P: " + pci2 + "/nvme2n2\nE: SUBSYSTEM=block\nE: DEVTYPE=disk\nA: nsid=3\nA: wwid=eui.2\n\n" +
		"P: " + pci2 + "/ng2n1\nE: SUBSYSTEM=nvme-generic\nA: nsid=2\n\nP: " + pci2 + "/hwmon3\nE: SUBSYSTEM=hwmon\n\n"
	head      = "/devices/virtual/nvme-subsystem/nvme-subsys3/nvme3n1"
	over0     = "/devices/pci0000:00/0000:00:05.0/0000:02:00.0/nvme/nvme0/nvme3c0n"
	over1     = "/devices/pci0000:00/0000:00:06.0/0000:03:00.0/nvme/nvme1/nvme3c1n"
	hidden    = "\nE: SUBSYSTEM=block\nE: DEVTYPE=disk\nA: hidden=1\nA: nsid=1\n\n"
	multipath = "P: " + over1 + "1" + hidden + "P: " + over1 + "2" + hidden +
		"P: /devices/virtual/nvme-subsystem/nvme-subsys3/nvme3n2\nN: nvme3n2\nE: SUBSYSTEM=block\nE: DEVTYPE=disk\nA: wwid=eui.3\n\n"
)

func TestNVMeTargets(t *testing.T) {
	const first = "A: wwid=eui.36344830545001230025384300000001"
	for _, c := range []struct {
		name, recording string
		edits           []string
		target          device.Target
	}{
		{
			name: "one namespace", recording: "nvme",
			edits: []string{first, "A: diskseq=9\nL: device=../../nvme2\n" + first, "A: state=live", "A: serial=S64HNE0T500123  \nA: state=live"},
			target: device.Target{
				Class: "nvme", SysPath: "/sys" + pci2 + "/nvme2n1", Disk: true, Sole: true,
				Identity: []device.Attribute{{"wwid", "eui.36344830545001230025384300000001"}, {"diskseq", "9"}, {"device/serial", "S64HNE0T500123"}},
				Auto:     "nvme-controller",
			},
		},
		{
			name: "two namespaces", recording: "nvme", edits: []string{"F: /proc/1/mountinfo", another + "F: /proc/1/mountinfo"},
			target: device.Target{
				Class: "nvme", SysPath: "/sys" + pci2 + "/nvme2n1", Disk: true, Sole: true,
				Identity: []device.Attribute{{"wwid", "eui.36344830545001230025384300000001"}},
				Siblings: []string{"/sys" + pci2 + "/nvme2n2"},
			},
		},
		{
			name: "one head over one controller", recording: "nvme-multipath", edits: []string{"A: hidden=1\\n", "A: hidden=1\nA: nsid=1"},
			target: device.Target{
				Class: "nvme", SysPath: "/sys" + head, Disk: true, Sole: true,
				Identity: []device.Attribute{{"wwid", "uuid.01234567-89ab-cdef-0123-456789abcdef"}},
				Auto:     "nvme-controller",
			},
		},
		{
			name: "two heads, one over both controllers", recording: "nvme-multipath",
			edits: []string{"A: hidden=1\\n", "A: hidden=1\nA: nsid=1", "F: /proc/self", multipath + "F: /proc/self"},
			target: device.Target{
				Class: "nvme", SysPath: "/sys" + head, Disk: true, Sole: true,
				Identity: []device.Attribute{{"wwid", "uuid.01234567-89ab-cdef-0123-456789abcdef"}},
				Siblings: []string{"/sys/devices/virtual/nvme-subsystem/nvme-subsys3/nvme3n2"},
			},
		},
		{
			name: "a head that another controller of the subsystem alone reaches", recording: "nvme-multipath",
			edits: []string{
				"A: hidden=1\\n", "A: hidden=1\nA: nsid=1",
				"F: /proc/self", strings.Replace(multipath, "P: "+over1+"1"+hidden, "", 1) + "F: /proc/self",
			},
			target: device.Target{
				Class: "nvme", SysPath: "/sys" + head, Disk: true, Sole: true,
				Identity: []device.Attribute{{"wwid", "uuid.01234567-89ab-cdef-0123-456789abcdef"}},
				Auto:     "nvme-controller",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, devices := loadMachine(t, c.recording, c.edits...)
			i := -1
			sightings := lookAll(h, everything, devices)
			for n, s := range sightings {
				if s.Device.SysPath == c.target.SysPath {
					i = n
				}
			}
			if i < 0 {
				t.Fatalf("%s is not seen", c.target.SysPath)
			}
			if got := sightings[i].Target; !reflect.DeepEqual(got, &c.target) {
				t.Errorf("target\n%+v, want\n%+v", got, c.target)
			}
		})
	}
}

func TestNodeTargets(t *testing.T) {
	h, devices := loadMachine(t, "node-disk", "E: ID_MODEL=WDC_WD40EFRX-68N32N0\nE: ID_PART_TABLE_TYPE=gpt\nE: ID_SERIAL=WDC_WD40EFRX-68N32N0_WD-WCC7K0ABCDEF\nE: ID_SERIAL_SHORT=WD-WCC7K0ABCDEF\nE: MAJOR=8\nE: MINOR=0",
		"A: diskseq=3\nA: dev=8:0\nE: MAJOR=8\nE: MINOR=0")
	got := make(map[string]*device.Target)
	for _, u := range devices {
		got[path.Base(u.SysPath)] = device.Generic.Target(h, device.Device{Class: &device.Generic, SysPath: u.SysPath, Udev: &u})
	}
	const sda = "/sys/devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda"
	want := map[string]*device.Target{
		"0:0:0:0": nil, "sda1": nil, "sg0": nil,
		"sda": {Class: "node", SysPath: sda, Disk: true, Sole: true, Identity: []device.Attribute{{"diskseq", "3"}, {"dev", "8:0"}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("targets\n%+v, want\n%+v", got, want)
	}
	if a := want["sda"].Appearance(); a != "3" {
		t.Errorf("its appearance is %q", a)
	}
	for name, none := range map[string]*device.Target{"none": nil, "one without identity": {}} {
		if a, m, all := none.Appearance(), none.Medium(), none.Attributes(); a != "" || m != "" || all != nil || none.IsDisk() {
			t.Errorf("%s has the appearance %q, the medium %q and the attributes %v", name, a, m, all)
		}
		if sda := want["sda"]; none.Alike(sda) || sda.Alike(none) || !none.Alike(nil) || !sda.IsDisk() {
			t.Errorf("%s is taken for another", name)
		}
	}
}

// TestRemovableMedium checks that the identity of a drive does not identify its medium. Facts about one medium must not
// apply to the next medium.
func TestRemovableMedium(t *testing.T) {
	for removable, medium := range map[string]string{"0": "wwid=naa.5", "1": ""} {
		h, devices := loadMachine(t, "node-disk", "E: MAJOR=8\nE: MINOR=0", "A: diskseq=3\nA: wwid=naa.5\nA: removable="+removable+"\nA: dev=8:0\nE: MAJOR=8\nE: MINOR=0")
		for _, u := range devices {
			if path.Base(u.SysPath) != "sda" {
				continue
			}
			target := device.Generic.Target(h, device.Device{Class: &device.Generic, SysPath: u.SysPath, Udev: &u})
			if target.Medium() != medium || target.Appearance() != "3" {
				t.Errorf("removable %s: medium %q, appearance %q", removable, target.Medium(), target.Appearance())
			}
		}
	}
}

func TestPortTargets(t *testing.T) {
	h, devices := loadMachine(t, "fpga-dfl")
	found := 0
	for _, s := range lookAll(h, everything, devices) {
		d := s.Device
		if port := h.Link(d.SysPath, "driver") == "dfl-port"; port != (s.Target != nil) {
			t.Errorf("%s: target is %+v", d.SysPath, s.Target)
		}
		if s.Target != nil {
			found++
			if s.Target.SysPath != d.SysPath || s.Target.Disk || !s.Target.Sole || s.Target.Auto != "dfl-port" {
				t.Errorf("target is %+v", s.Target)
			}
		}
	}
	if found == 0 {
		t.Error("no port has a target")
	}
}

// TestVFIOTargets checks that a device for user-space drivers is reset through its group if each function in the group can
// be reset.
func TestVFIOTargets(t *testing.T) {
	const qat, drive = "P: /devices/pci0000:6a/0000:6b:00.1\n", "P: /devices/pci0000:80/0000:80:01.0/0000:81:00.0\n"
	const first, second = "P: /devices/pci0000:c0/0000:c1:00.0\n", "P: /devices/pci0000:c0/0000:c1:00.1\n"
	able := func(functions ...string) (edits []string) {
		for _, f := range functions {
			edits = append(edits, f, f+"A: reset=\nA: reset_method=flr\\n\n")
		}
		return append(edits, "N: vfio/120\n", "N: vfio/120\nA: dev=511:0\\n\n")
	}
	for _, c := range []struct {
		name  string
		edits []string
		auto  map[string]string
	}{
		{"none can be reset", able(), map[string]string{"120": "", "37": "", "9": ""}},
		{"a bridge does not matter, half of a group does", able(qat, drive, first), map[string]string{"120": "vfio", "37": "vfio", "9": ""}},
		{"all can", able(qat, drive, first, second), map[string]string{"120": "vfio", "37": "vfio", "9": "vfio"}},
		{
			"in other hands", append(able(qat), "L: driver=../../../bus/pci/drivers/vfio-pci\nL: iommu_group=../../../kernel/iommu_groups/120\n",
				"L: iommu_group=../../../kernel/iommu_groups/120\n"), map[string]string{"120": "", "37": "", "9": ""},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, devices := loadMachine(t, "node-vfio", c.edits...)
			auto := make(map[string]string)
			for _, u := range devices {
				d := device.Device{Class: &device.Generic, SysPath: u.SysPath, Udev: &u}
				target := device.Generic.Target(h, d)
				if u.Subsystem != "vfio" {
					if target != nil {
						t.Errorf("%s: %+v", u.SysPath, target)
					}
					continue
				}
				if target == nil || target.SysPath != u.SysPath || target.Disk || !target.Sole {
					t.Fatalf("target is %+v", target)
				}
				auto[path.Base(u.SysPath)] = target.Auto
				if path.Base(u.SysPath) == "120" && !reflect.DeepEqual(target.Identity, []device.Attribute{{"dev", "511:0"}}) {
					t.Errorf("its identity is %v", target.Identity)
				}
			}
			if !reflect.DeepEqual(auto, c.auto) {
				t.Errorf("auto is %v, want %v", auto, c.auto)
			}
		})
	}
}

// TestVFIODeviceTarget checks that a VFIO device is also reset through its group if the group has a node.
func TestVFIODeviceTarget(t *testing.T) {
	const function, node = "P: /devices/pci0000:6a/0000:6b:00.2\n", "P: /devices/virtual/vfio/121\nN: vfio/121\nE: SUBSYSTEM=vfio\n\n"
	for want, edits := range map[string][]string{
		"":     {function, function + "A: reset=\nL: iommu_group=../../../kernel/iommu_groups/121\n"},
		"vfio": {function, node + function + "A: reset=\nL: iommu_group=../../../kernel/iommu_groups/121\n"},
	} {
		h, devices := loadMachine(t, "node-vfio-device", edits...)
		for _, u := range devices {
			d := device.Device{Class: &device.Generic, SysPath: u.SysPath, Udev: &u}
			if target := device.Generic.Target(h, d); u.Subsystem == "vfio-dev" && (target == nil || target.Auto != want || target.SysPath != u.SysPath) {
				t.Errorf("target is %+v, want %q", target, want)
			}
		}
	}
}

// TestFunctionTargets checks that the targets of a GPU and an RDMA device contain their sysfs attributes.
func TestFunctionTargets(t *testing.T) {
	for recording, want := range map[string]string{"gpu-amd": "unique_id", "infiniband-mlx5": "node_guid"} {
		h, devices := loadMachine(t, recording)
		found := false
		for _, s := range lookAll(h, everything, devices) {
			found = found || s.Target.Attributes()[want] != "" && s.Target.SysPath == s.Device.SysPath
		}
		if !found {
			t.Errorf("%s: nothing is known by its %s", recording, want)
		}
	}
}
