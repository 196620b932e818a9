// SPDX-License-Identifier: Apache-2.0

package turnover

import (
	"context"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// TestAutoOfWhatNobodyCanFind: a group of nodes has the class of its first, whose method would reset a part of it.
func TestAutoOfWhatNobodyCanFind(t *testing.T) {
	class := device.Class{Name: "node", Auto: func(*device.Host, device.Device) string { return "vfio" }}
	s := &inventory.Status{Device: &device.Device{ID: "group-a", Class: &class}}
	turn := Turnover{Host: &device.Host{Touch: device.Touch{
		Prepare: func(context.Context, device.Target, device.Work) (device.Prepared, error) {
			t.Error("it is reset")
			return device.Prepared{}, nil
		},
	}}}
	if method, err := turn.method(t.Context(), s, Auto); method != "" || err != nil {
		t.Errorf("%v, %v", method, err)
	}
	if _, err := turn.touch(t.Context(), s, device.Work{Method: "vfio"}); err == nil {
		t.Error("what is asked for by name is left out without a word")
	}
}

// TestRenews: what a released device is reset and erased for once more, and what not.
func TestRenews(t *testing.T) {
	full := Care{Method: Auto, Scrub: "zero", AtRelease: true}
	but := func(change func(*Care)) Care {
		c := full
		change(&c)
		return c
	}
	open := but(func(c *Care) { c.Open = true })
	onlyAtStart := but(func(c *Care) { c.AtStart, c.AtRelease = true, false })
	otherMethod, otherScrub := but(func(c *Care) { c.Method = "pci" }), but(func(c *Care) { c.Scrub = "discard" })
	irrelevant := but(func(c *Care) {
		c.AtStart, c.Timeout, c.Units = true, time.Hour, Units{Start: "start", Release: "release"}
	})
	for _, c := range []struct {
		name       string
		care, by   Care
		well, sick bool // what is wanted where nothing has gone wrong, and where something has
	}{
		{"by none", full, Care{}, true, true},
		{"by the same", full, full, false, false},
		{"by one that differs in nothing that matters", full, irrelevant, false, false},
		{"by another method", full, otherMethod, true, true},
		{"by another scrub", full, otherScrub, true, true},
		{"by one that does neither", full, onlyAtStart, true, true},
		{"by that of a device that others had open", full, open, true, true},
		{"not after a pod, by none", onlyAtStart, Care{}, false, true},
		{"not after a pod, by the same", onlyAtStart, onlyAtStart, false, false},
		{"not after a pod, by one that does", onlyAtStart, otherScrub, false, false},
		{"not after a pod, by that of a device that others had open", onlyAtStart, open, false, false},
		{"others have it open, by none", open, Care{}, false, false},
		{"others have it open, by another", open, otherScrub, false, false},
	} {
		if well, sick := c.care.renews(c.by, false), c.care.renews(c.by, true); well != c.well || sick != c.sick {
			t.Errorf("%s: %t, and %t after a failure; want %t and %t", c.name, well, sick, c.well, c.sick)
		}
	}
}
