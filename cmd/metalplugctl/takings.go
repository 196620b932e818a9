// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// taking is what a resource would take of the devices that are present.
type taking struct {
	Resource string  `json:"resource"`
	Devices  []taken `json:"devices"` // that it takes
	Lost     []taken `json:"lost"`    // that it matches as well, but an earlier resource takes
}

// taken is a device that a resource takes or would take.
type taken struct {
	ID     string `json:"id"`
	By     string `json:"by,omitempty"`     // which resource takes it from this one
	Reason string `json:"reason,omitempty"` // why it is not offered, or Unhealthy, at present
}

// takings looks at all devices that are present, or in the recording that is configured, and sorts them by resource, in
// the order of the configuration. It reads what the daemon would read and changes nothing.
func takings(c config.Config) ([]taking, error) {
	source, host, done, err := hardware(c, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer done()
	devices, err := source.Enumerate()
	if err != nil {
		return nil, err
	}
	rules := c.Rules()
	all := make([]taking, len(rules))
	for i, r := range rules {
		all[i] = taking{Resource: r.Resource, Devices: []taken{}, Lost: []taken{}}
	}
	for _, u := range devices {
		for _, s := range device.Look(host, rules, &u) {
			seen := false // the resource that takes it
			for i, r := range rules {
				switch {
				case s.Resource == r.Resource:
					seen = true
					all[i].Devices = append(all[i].Devices, taken{ID: s.Device.ID, Reason: reason(s)})
				case seen && matchesToo(host, r, u, s.Device.ID):
					all[i].Lost = append(all[i].Lost, taken{ID: s.Device.ID, By: s.Resource})
				}
			}
		}
	}
	byID := func(a, b taken) int { return strings.Compare(a.ID, b.ID) }
	for i := range all {
		slices.SortFunc(all[i].Devices, byID)
		slices.SortFunc(all[i].Lost, byID)
	}
	return all, nil
}

// reason is why a device that a resource takes is of no use to a pod at present; empty: it is.
func reason(s device.Sighting) string {
	if err := cmp.Or(s.Offer, s.Health); err != nil {
		return err.Error()
	}
	return ""
}

// matchesToo tells whether a rule would take a device if it were the only one.
func matchesToo(h *device.Host, r device.Rule, u udev.Device, id string) bool {
	return slices.ContainsFunc(device.Look(h, []device.Rule{r}, &u), func(s device.Sighting) bool {
		return s.Device.ID == id && s.Resource == r.Resource
	})
}

// taking writes what a resource would take.
func (s *screen) taking(t taking) {
	text := fmt.Sprintf("devices: %d", len(t.Devices))
	switch {
	case len(t.Devices) == 0 && len(t.Lost) > 0:
		text += "; earlier resources take what it matches"
	case len(t.Devices) == 0:
		text += "; no device that is present matches"
	}
	s.line(t.Resource+"  ", bold, text)
	for _, d := range t.Devices {
		if d.Reason != "" {
			d.ID += ": not for pods now: " + d.Reason
		}
		s.line("  ", "", d.ID)
	}
	for _, d := range t.Lost {
		s.line("  -- ", yellow, d.ID+": "+d.By+" takes it first")
	}
}
