// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"context"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// TestAutoOfWhatNobodyCanFind: a group of nodes has the class of its first, whose method would reset a part of it.
func TestAutoOfWhatNobodyCanFind(t *testing.T) {
	class := device.Class{Name: "node", Auto: func(*device.Host, device.Device) string { return "vfio" }}
	s := &inventory.Status{Device: &device.Device{ID: "group-a", Class: &class}}
	turn := Turnover{Host: &device.Host{Touch: device.Touch{
		Reset: func(context.Context, device.Target, string, bool) (string, error) {
			t.Error("it is reset")
			return "", nil
		},
	}}}
	if done, err := turn.reset(t.Context(), s, Auto); done || err != nil {
		t.Errorf("%v, %v", done, err)
	}
	if _, err := turn.reset(t.Context(), s, "vfio"); err == nil {
		t.Error("what is asked for by name is left out without a word")
	}
}
