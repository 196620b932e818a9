// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
)

func TestSmart(t *testing.T) {
	for _, c := range []struct {
		smart         Smart
		sick, warning string
	}{
		{Smart{}, "", ""},
		{Smart{Known: true, Used: 99, Spare: 100, Temperature: 40}, "", ""},
		{Smart{Known: true, Used: 100}, "", "SMART: 100 % of its life is used"},
		{Smart{Known: true, Warning: 0x01, Spare: 3}, "", "SMART: 3 % of its spare blocks are left"},
		{Smart{Known: true, Warning: 0x02, Temperature: 91}, "", "SMART: its temperature is 91 °C"},
		{
			Smart{Known: true, Warning: 0x03, Spare: 3, Temperature: 91, Used: 255},
			"",
			"SMART: 3 % of its spare blocks are left; SMART: its temperature is 91 °C; SMART: 255 % of its life is used",
		},
		{Smart{Known: true, Warning: 0x04, MediaErrors: 5}, "SMART: its reliability is degraded (5 media errors)", ""},
		{Smart{Known: true, Warning: 0x08}, "SMART: its media is read-only", ""},
		{Smart{Known: true, Warning: 0x10}, "SMART: the backup of its volatile memory has failed", ""},
		{Smart{Known: true, Warning: 0x20}, "SMART: its persistent memory region is unreliable", ""},
		{Smart{Known: true, Warning: 0x0c}, "SMART: its reliability is degraded (0 media errors); SMART: its media is read-only", ""},
	} {
		if sick, warning := c.smart.says(true), c.smart.says(false); sick != c.sick || warning != c.warning {
			t.Errorf("%+v is sick: %s, and warns: %s\nwant %s, %s", c.smart, sick, warning, c.sick, c.warning)
		}
	}
}

// seen is what of a sighting a probe has to do with.
type seen struct{ Offer, Health, Warning string }

func TestProbe(t *testing.T) {
	unread := errors.New("connect to /run/metalplug/reset.sock: no such file or directory")
	inUse := fmt.Errorf("%w: it cannot be opened exclusively", ErrInUse)
	const id = "nvme-eui.36344830545001230025384300000001"
	for _, c := range []struct {
		name    string
		edits   []string
		missing string // node
		held    bool
		allowed bool // to be in use
		erases  bool // whatever is on it
		proven  bool // that nothing is on it
		reading Reading
		err     error
		asked   string // how it was probed; empty: it was not
		want    seen
	}{
		{name: "blank", asked: "free", want: seen{"<nil>", "<nil>", ""}},
		{name: "data", reading: Reading{Content: "ext4", Fingerprint: "7"}, asked: "free", want: seen{"in use: it holds data: ext4 is on it", "<nil>", ""}},
		{name: "data, allowed", reading: Reading{Content: "ext4"}, allowed: true, asked: "free", want: seen{"<nil>", "<nil>", ""}},
		{
			name: "SMART", reading: Reading{Smart: Smart{Known: true, Warning: 0x0a, Temperature: 80}}, asked: "free",
			want: seen{"<nil>", "SMART: its media is read-only", "SMART: its temperature is 80 °C"},
		},
		{name: "claimed", err: inUse, asked: "free", want: seen{"in use: it cannot be opened exclusively", "<nil>", ""}},
		{name: "claimed, allowed", err: inUse, allowed: true, asked: "free", want: seen{"<nil>", "<nil>", ""}},
		{name: "unread", err: unread, asked: "free", want: seen{"not complete: it cannot be proven empty: " + unread.Error(), "<nil>", ""}},
		{name: "unread, by nobody", err: fmt.Errorf("%w: x", ErrUnanswered), asked: "free", want: seen{"not complete: it cannot be proven empty: no answer: x", "<nil>", ""}},
		{
			name: "unread, by nobody, and without its node", missing: "nvme2n1",
			err: fmt.Errorf("%w: x", ErrUnanswered), asked: "free", want: seen{"not complete: /dev/nvme2n1 is missing", "<nil>", ""},
		},
		{name: "unread, allowed", err: unread, allowed: true, asked: "free", want: seen{"<nil>", "<nil>", ""}},
		{
			name: "held", held: true, reading: Reading{Smart: Smart{Known: true, Warning: 0x04}}, asked: "held",
			want: seen{"<nil>", "SMART: its reliability is degraded (0 media errors)", ""},
		},
		{name: "held, unread", held: true, err: unread, asked: "held", want: seen{"<nil>", "<nil>", ""}},
		{
			name: "held, with a file system", held: true, edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4"}, asked: "held",
			want: seen{"in use: it holds data: udev found ID_FS_TYPE=ext4", "<nil>", ""},
		},
		{
			name: "kept back anyway", edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4"},
			want: seen{"in use: it holds data: udev found ID_FS_TYPE=ext4", "<nil>", ""},
		},
		{
			name: "erased for the next", erases: true, edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4"}, reading: Reading{Content: "ext4"}, asked: "offered",
			want: seen{"in use: it holds data: udev found ID_FS_TYPE=ext4", "<nil>", ""},
		},
		{
			name: "erased for the next, if it is not claimed", erases: true, edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4"},
			reading: Reading{Fingerprint: "7", Claimed: true}, err: inUse, asked: "offered",
			want: seen{"in use: it holds data: udev found ID_FS_TYPE=ext4; in use: it cannot be opened exclusively", "<nil>", ""},
		},
		{
			name: "erased for the next, and nobody answers", erases: true, edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4"},
			err: fmt.Errorf("%w: x", ErrUnanswered), asked: "offered", want: seen{"in use: it holds data: udev found ID_FS_TYPE=ext4", "<nil>", ""},
		},
		{
			name: "erased for the next, but read-only", erases: true, edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4", "ro=0", "ro=1"},
			want: seen{"in use: it holds data: udev found ID_FS_TYPE=ext4; not for containers: it is read-only", "<nil>", ""},
		},
		{
			name: "proven, and udev found data", proven: true, edits: []string{"E: ID_NSID=2", "E: ID_FS_TYPE=ext4"},
			reading: Reading{Fingerprint: "7"}, asked: "free", want: seen{"in use: it holds data: udev found ID_FS_TYPE=ext4", "<nil>", ""},
		},
		{name: "held, and erased for the next", held: true, erases: true, asked: "held", want: seen{"<nil>", "<nil>", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, devices := recorded(t, "nvme", c.edits...)
			if c.missing != "" {
				if err := os.Remove(h.Dev + "/" + c.missing); err != nil {
					t.Fatal(err)
				}
			}
			asked := ""
			h.Holds = func(which string) bool { return which == id && c.held }
			h.Erases = func(which string) bool { return which == id && c.erases }
			h.Proven = func(which string) bool { return which == id && c.proven }
			h.Touch.Probe = func(ctx context.Context, target Target, held bool) (Reading, error) {
				switch asked = "free"; {
				case held:
					asked = "held"
				case target.Offered:
					asked = "offered"
				}
				if end, ok := ctx.Deadline(); !ok || time.Until(end) > probeLimit {
					t.Error("it may take for ever")
				}
				if !target.Disk || target.SysPath == "" {
					t.Errorf("target is %+v", target)
				}
				return c.reading, c.err
			}
			sightings := lookAll(h, []Rule{{Resource: "test/nvme", Class: &NVMe, AllowInUse: c.allowed}}, devices)
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
	for name, rules := range map[string][]Rule{
		"gpu-intel": everything, "fpga-dfl": everything, "infiniband-mlx5": everything,
		"node-serial": {{Resource: "test/node", Class: &Generic, Match: map[string]string{"SUBSYSTEM": "tty"}}},
		"node-disk":   {{Resource: "test/node", Class: &Generic, Match: map[string]string{"SUBSYSTEM": "scsi_generic"}}},
	} {
		h, devices := recorded(t, name)
		h.Touch.Probe = func(_ context.Context, target Target, _ bool) (Reading, error) {
			t.Errorf("%s: %+v is probed", name, target)
			return Reading{}, nil
		}
		if len(lookAll(h, rules, devices)) == 0 {
			t.Errorf("%s: nothing is seen", name)
		}
	}
}

// TestAnotherDiskComesMeanwhile: between the moments when a disk is identified and when it is aimed at.
func TestAnotherDiskComesMeanwhile(t *testing.T) {
	h, devices := recorded(t, "nvme")
	class := NVMe
	class.Target = func(h *Host, d Device) *Target {
		other, _ := recorded(t, "nvme", "wwid=eui.36344830545001230025384300000001", "wwid=eui.0000000000000002")
		*h = *other
		return nvmeTarget(h, d)
	}
	var disk Device
	for _, u := range devices {
		if NVMe.Selects(u) {
			all, err := NVMe.Identify(h, u)
			if err != nil {
				t.Fatal(err)
			}
			disk = all[0]
			disk.Class, disk.SysPath, disk.Udev = &class, u.SysPath, &u
		}
	}
	s := Sighting{Device: &disk}
	s.aim(h)
	if !errors.Is(s.Offer, ErrIncomplete) || s.Target != nil {
		t.Errorf("offer %v, target %+v", s.Offer, s.Target)
	}
}

// TestOnlyUnanswered: what is known of a disk counts, and what nobody could tell does not.
func TestOnlyUnanswered(t *testing.T) {
	silent := incompletef("it cannot be proven empty: %w", fmt.Errorf("%w: x", ErrUnanswered))
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{silent, true},
		{incompletef("its wwid is empty"), false},
		{joined(silent, excludedf("nvme1n1 has the same identity")), false},
		{joined(silent, byNamef("a display")), false},
		{joined(inUsef("it is mounted"), silent), false},
		{joined(dataf("ext4"), silent), false},
		{fmt.Errorf("%w: %w", silent, ErrGone), false},
	} {
		if got := OnlyUnanswered(c.err); got != c.want {
			t.Errorf("%v: %t, want %t", c.err, got, c.want)
		}
	}
}
