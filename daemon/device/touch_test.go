// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

func TestSmart(t *testing.T) {
	for _, c := range []struct {
		smart         device.Smart
		sick, warning string
	}{
		{device.Smart{}, "<nil>", ""},
		{device.Smart{Known: true, Used: 99, Spare: 100, Temperature: 40}, "<nil>", ""},
		{device.Smart{Known: true, Used: 100}, "<nil>", "SMART: 100 % of the rated life is used"},
		{device.Smart{Known: true, Warning: 0x01, Spare: 3}, "<nil>", "SMART: 3 % of the spare blocks are left"},
		{device.Smart{Known: true, Warning: 0x02, Temperature: 91}, "<nil>", "SMART: the temperature is 91 °C"},
		{
			device.Smart{Known: true, Warning: 0x03, Spare: 3, Temperature: 91, Used: 255},
			"<nil>",
			"SMART: 3 % of the spare blocks are left; SMART: the temperature is 91 °C; SMART: 255 % of the rated life is used",
		},
		{device.Smart{Known: true, Warning: 0x04, MediaErrors: 5}, "SMART: the reliability is degraded (5 media errors)", ""},
		{device.Smart{Known: true, Warning: 0x08}, "SMART: the media are read-only", ""},
		{device.Smart{Known: true, Warning: 0x10}, "SMART: the backup device of the volatile memory has failed", ""},
		{device.Smart{Known: true, Warning: 0x20}, "SMART: the persistent memory region is unreliable", ""},
		{device.Smart{Known: true, Warning: 0x0c}, "SMART: the reliability is degraded (0 media errors); SMART: the media are read-only", ""},
	} {
		h, devices := loadMachine(t, "nvme")
		h.Touch.Probe = func(context.Context, device.Target, bool) (device.Report, error) {
			return device.Report{Smart: c.smart}, nil
		}
		s := inspectAll(h, everything, devices)[0]
		if sick := fmt.Sprint(s.Health); sick != c.sick || s.Warning != c.warning {
			t.Errorf("%+v is sick: %s, and warns: %s\nwant %s, %s", c.smart, sick, s.Warning, c.sick, c.warning)
		}
	}
}

// seen has the parts of a sighting that a probe affects.
type seen struct{ Offer, Health, Warning string }

func TestProbe(t *testing.T) {
	unread := errors.New("connect to /run/metalplug/reset.sock: no such file or directory")
	inUse := fmt.Errorf("%w: it cannot be opened exclusively", device.ErrInUse)
	const id = "nvme-eui.36344830545001230025384300000001"
	for _, c := range []struct {
		name    string
		edits   []string
		missing string // missing device node
		held    bool
		allowed bool // may be in use
		erases  bool // offered with any content
		proven  bool // known to be blank
		reading device.Report
		err     error
		asked   string // kind of probe, or empty
		want    seen
	}{
		{name: "blank", asked: "free", want: seen{"<nil>", "<nil>", ""}},
		{name: "data", reading: device.Report{Content: "ext4", Fingerprint: "7"}, asked: "free", want: seen{"not empty: the disk contains ext4", "<nil>", ""}},
		{name: "data, allowed", reading: device.Report{Content: "ext4"}, allowed: true, asked: "free", want: seen{"<nil>", "<nil>", ""}},
		{
			name: "SMART", reading: device.Report{Smart: device.Smart{Known: true, Warning: 0x0a, Temperature: 80}}, asked: "free",
			want: seen{"<nil>", "SMART: the media are read-only", "SMART: the temperature is 80 °C"},
		},
		{name: "claimed", err: inUse, asked: "free", want: seen{"in use: it cannot be opened exclusively", "<nil>", ""}},
		{name: "claimed, allowed", err: inUse, allowed: true, asked: "free", want: seen{"<nil>", "<nil>", ""}},
		{name: "unread", err: unread, asked: "free", want: seen{"not complete: metalplug cannot prove that the disk is empty: " + unread.Error(), "<nil>", ""}},
		{name: "unread, without an answer", err: fmt.Errorf("%w: x", device.ErrUnanswered), asked: "free", want: seen{"not complete: metalplug cannot prove that the disk is empty: no answer: x", "<nil>", ""}},
		{
			name: "unread, without an answer, and without its node", missing: "nvme2n1",
			err: fmt.Errorf("%w: x", device.ErrUnanswered), asked: "free", want: seen{"not complete: /dev/nvme2n1 is missing", "<nil>", ""},
		},
		{name: "unread, allowed", err: unread, allowed: true, asked: "free", want: seen{"<nil>", "<nil>", ""}},
		{
			name: "held", held: true, reading: device.Report{Smart: device.Smart{Known: true, Warning: 0x04}}, asked: "held",
			want: seen{"<nil>", "SMART: the reliability is degraded (0 media errors)", ""},
		},
		{name: "held, unread", held: true, err: unread, asked: "held", want: seen{"<nil>", "<nil>", ""}},
		{
			name: "held, with a file system", held: true, edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4"}, asked: "held",
			want: seen{"not empty: udev found ID_FS_TYPE=ext4", "<nil>", ""},
		},
		{
			name: "kept back anyway", edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4"},
			want: seen{"not empty: udev found ID_FS_TYPE=ext4", "<nil>", ""},
		},
		{
			name: "erased for the next", erases: true, edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4"}, reading: device.Report{Content: "ext4"}, asked: "offered",
			want: seen{"not empty: udev found ID_FS_TYPE=ext4", "<nil>", ""},
		},
		{
			name: "erased for the next, if it is not claimed", erases: true, edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4"},
			reading: device.Report{Fingerprint: "7", Claimed: true}, err: inUse, asked: "offered",
			want: seen{"not empty: udev found ID_FS_TYPE=ext4; in use: it cannot be opened exclusively", "<nil>", ""},
		},
		{
			name: "erased for the next, and nobody answers", erases: true, edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4"},
			err: fmt.Errorf("%w: x", device.ErrUnanswered), asked: "offered", want: seen{"not empty: udev found ID_FS_TYPE=ext4", "<nil>", ""},
		},
		{
			name: "erased for the next, but read-only", erases: true, edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4", "ro=0", "ro=1"},
			want: seen{"not empty: udev found ID_FS_TYPE=ext4; not for containers: the disk is read-only", "<nil>", ""},
		},
		{
			name: "proven, and udev found data", proven: true, edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4"},
			reading: device.Report{Fingerprint: "7"}, asked: "free", want: seen{"not empty: udev found ID_FS_TYPE=ext4", "<nil>", ""},
		},
		{name: "held, and erased for the next", held: true, erases: true, asked: "held", want: seen{"<nil>", "<nil>", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, devices := loadMachine(t, "nvme", c.edits...)
			if c.missing != "" {
				if err := os.Remove(h.Dev + "/" + c.missing); err != nil {
					t.Fatal(err)
				}
			}
			asked := ""
			h.Notes = map[string]device.Note{id: {Held: c.held, Erased: c.erases, Forced: c.proven}}
			h.Touch.Probe = func(ctx context.Context, target device.Target, held bool) (device.Report, error) {
				switch asked = "free"; {
				case held:
					asked = "held"
				case target.Offered:
					asked = "offered"
				}
				if end, ok := ctx.Deadline(); !ok || time.Until(end) > 20*time.Second {
					t.Error("it may take for ever")
				}
				if !target.Disk || target.SysPath == "" {
					t.Errorf("target is %+v", target)
				}
				return c.reading, c.err
			}
			sightings := inspectAll(h, []device.Rule{{Resource: "test/nvme", Class: &device.NVMe, AllowInUse: c.allowed}}, devices)
			s := sightings[0]
			if known := s.Fingerprint == "7"; known != (c.reading.Fingerprint == "7" && c.err == nil) {
				t.Errorf("fingerprint is %q", s.Fingerprint)
			}
			if use := c.reading.Claimed; s.HostUse(false) != use || s.HostUse(true) {
				t.Errorf("used by the host: %t, though a pod holds it: %t; want %t", s.HostUse(false), s.HostUse(true), use)
			}
			if got := (seen{fmt.Sprint(s.Offer), fmt.Sprint(s.Health), s.Warning}); got != c.want || asked != c.asked {
				t.Errorf("%q, asked %q\nwant %q, asked %q", got, asked, c.want, c.asked)
			}
		})
	}
}

func TestOnlyDisksAreProbed(t *testing.T) {
	for name, rules := range map[string][]device.Rule{
		"gpu-intel": everything, "fpga-dfl": everything, "infiniband-mlx5": everything,
		"node-serial": {{Resource: "test/node", Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "tty"}}},
		"node-disk":   {{Resource: "test/node", Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "scsi_generic"}}},
	} {
		h, devices := loadMachine(t, name)
		h.Touch.Probe = func(_ context.Context, target device.Target, _ bool) (device.Report, error) {
			t.Errorf("%s: %+v is probed", name, target)
			return device.Report{}, nil
		}
		if len(inspectAll(h, rules, devices)) == 0 {
			t.Errorf("%s: nothing is seen", name)
		}
	}
}

// TestReplacedDuringIdentification replaces the disk between its identification and the recording of its target.
func TestReplacedDuringIdentification(t *testing.T) {
	h, devices := loadMachine(t, "nvme")
	target := device.NVMe.Target
	t.Cleanup(func() { device.NVMe.Target = target })
	device.NVMe.Target = func(h *device.Host, d device.Device) *device.Target {
		other, _ := loadMachine(t, "nvme", "wwid=eui.36344830545001230025384300000001", "wwid=eui.0000000000000002")
		*h = *other
		return target(h, d)
	}
	s := inspectAll(h, everything, devices)[0]
	if !errors.Is(s.Offer, device.ErrIncomplete) || s.Target != nil {
		t.Errorf("offer %v, target %+v", s.Offer, s.Target)
	}
}

// A missing answer of a helper does not hide a known reason.
func TestOnlyUnanswered(t *testing.T) {
	silent := fmt.Errorf("%w: metalplug cannot prove that the disk is empty: %w: x", device.ErrIncomplete, device.ErrUnanswered)
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{silent, true},
		{fmt.Errorf("%w: the wwid of the disk is empty", device.ErrIncomplete), false},
		{fmt.Errorf("%w; %w: nvme1n1 has the same identity", silent, device.ErrExcluded), false},
		{fmt.Errorf("%w; %w: a display", silent, device.ErrByName), false},
		{fmt.Errorf("%w: it is mounted; %w", device.ErrInUse, silent), false},
		{fmt.Errorf("%w: ext4; %w", device.ErrData, silent), false},
		{fmt.Errorf("%w: %w", silent, device.ErrGone), false},
	} {
		if got := device.OnlyUnanswered(c.err); got != c.want {
			t.Errorf("%v: %t, want %t", c.err, got, c.want)
		}
	}
}

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
				Identity: map[string]string{"wwid": "eui.36344830545001230025384300000001", "diskseq": "9", "device/serial": "S64HNE0T500123"},
				Auto:     "nvme-controller",
			},
		},
		{
			name: "two namespaces", recording: "nvme", edits: []string{"F: /proc/1/mountinfo", another + "F: /proc/1/mountinfo"},
			target: device.Target{
				Class: "nvme", SysPath: "/sys" + pci2 + "/nvme2n1", Disk: true, Sole: true,
				Identity: map[string]string{"wwid": "eui.36344830545001230025384300000001"},
				Siblings: []string{"/sys" + pci2 + "/nvme2n2"},
			},
		},
		{
			name: "one head over one controller", recording: "nvme-multipath", edits: []string{"A: hidden=1\\n", "A: hidden=1\nA: nsid=1"},
			target: device.Target{
				Class: "nvme", SysPath: "/sys" + head, Disk: true, Sole: true,
				Identity: map[string]string{"wwid": "uuid.01234567-89ab-cdef-0123-456789abcdef"},
				Auto:     "nvme-controller",
			},
		},
		{
			name: "two heads, one over both controllers", recording: "nvme-multipath",
			edits: []string{"A: hidden=1\\n", "A: hidden=1\nA: nsid=1", "F: /proc/self", multipath + "F: /proc/self"},
			target: device.Target{
				Class: "nvme", SysPath: "/sys" + head, Disk: true, Sole: true,
				Identity: map[string]string{"wwid": "uuid.01234567-89ab-cdef-0123-456789abcdef"},
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
				Identity: map[string]string{"wwid": "uuid.01234567-89ab-cdef-0123-456789abcdef"},
				Auto:     "nvme-controller",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, devices := loadMachine(t, c.recording, c.edits...)
			i := -1
			sightings := inspectAll(h, everything, devices)
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
		"sda": {Class: "node", SysPath: sda, Disk: true, Sole: true, Identity: map[string]string{"diskseq": "3", "dev": "8:0"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("targets\n%+v, want\n%+v", got, want)
	}
	if a := want["sda"].Appearance(); a != "3" {
		t.Errorf("its appearance is %q", a)
	}
	for name, none := range map[string]*device.Target{"none": nil, "one without identity": {}} {
		if a, m, all := none.Appearance(), none.Medium(), none.Attributes(); a != "" || m != "" || len(all) > 0 || none.IsDisk() {
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
	for _, s := range inspectAll(h, everything, devices) {
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
				if path.Base(u.SysPath) == "120" && !reflect.DeepEqual(target.Identity, map[string]string{"dev": "511:0"}) {
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
		for _, s := range inspectAll(h, everything, devices) {
			found = found || s.Target.Attributes()[want] != "" && s.Target.SysPath == s.Device.SysPath
		}
		if !found {
			t.Errorf("%s: nothing is known by its %s", recording, want)
		}
	}
}
