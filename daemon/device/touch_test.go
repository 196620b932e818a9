// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
)

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
