// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"context"
	"errors"
	"fmt"
	"os"
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

// TestWithoutTarget checks that a device without a target, or without an identity, is not taken for another.
func TestWithoutTarget(t *testing.T) {
	sda := &device.Target{Disk: true, Identity: map[string]string{"diskseq": "3", "dev": "8:0"}}
	if a := sda.Appearance(); a != "3" {
		t.Errorf("its appearance is %q", a)
	}
	for name, none := range map[string]*device.Target{"none": nil, "one without identity": {}} {
		if a, m, all := none.Appearance(), none.Medium(), none.Attributes(); a != "" || m != "" || len(all) > 0 || none.IsDisk() {
			t.Errorf("%s has the appearance %q, the medium %q and the attributes %v", name, a, m, all)
		}
		if none.Alike(sda) || sda.Alike(none) || !none.Alike(nil) || !sda.IsDisk() {
			t.Errorf("%s is taken for another", name)
		}
	}
}
