// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"path"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// NewDevice converts a device in a snapshot to its JSON value on the control socket. The parameter holders maps device IDs to the
// pods that hold the devices.
func NewDevice(s *inventory.Status, holders map[string][]api.Pod) api.Device {
	d := api.Device{
		ID: s.Device.ID, Resource: s.Resource, Class: s.Device.ClassName(), Health: health(s.Healthy), Reason: s.Reason,
		Since: s.Since.UTC(), NUMANode: s.Device.NUMANode, SysPath: s.Device.SysPath, Nodes: []string{},
		Cordoned: s.Cordon != nil, Cordon: s.Cordon, Held: s.Occupied(), Warning: s.Warning, State: string(s.State),
		Hardware: api.Hardware{Model: s.Device.Model, Serial: serialOf(s.Target), WWID: wwidOf(s.Target), Size: s.Evidence.Size, Present: s.Present, Lost: s.Lost},
	}
	if d.Resource == "" {
		d.Taker = s.Taker
	}
	if v := s.Evidence; v.Kind != "" && v.Scrub == "" {
		d.Evidence = &api.Evidence{Kind: v.Kind, Since: v.Since.UTC()}
	}
	if function := s.Device.Function(); function != "" {
		d.PCI = path.Base(function)
	}
	d.Bundle = s.Bundle
	for _, c := range s.Claims {
		d.Claims = append(d.Claims, c.ClaimRef)
	}
	for _, m := range s.Members {
		d.Members = append(d.Members, m.Device.ID)
	}
	for _, n := range s.Nodes {
		d.Nodes = append(d.Nodes, n.Container)
	}
	if by := holders[s.Name()]; s.Held() && len(by) > 0 {
		d.Allocated = &by[0]
		if len(by) > 1 {
			d.Holders = by
		}
	}
	return d
}

// serialOf returns a disk's serial number or WWID, or "".
func serialOf(t *device.Target) string {
	return cmp.Or(strings.TrimSpace(t.Attributes()["device/serial"]), wwidOf(t))
}

// wwidOf returns the worldwide name that a disk reports, or "".
func wwidOf(t *device.Target) string {
	names := t.Attributes()
	return strings.TrimSpace(cmp.Or(names["wwid"], names["device/wwid"]))
}

// readProgress returns the number of disks that metalplugd is reading, and the percentage of their bytes that it has read. If it
// is reading none, the result is nil.
func readProgress(snapshot *inventory.Snapshot) *api.ReadProgress {
	var r api.ReadProgress
	var read, size int64
	for d := range snapshot.All() {
		if d.Todo == verdict.ReadDisk {
			r.Disks++
			read, size = read+d.Evidence.Read, size+d.Evidence.Size
		}
	}
	if r.Disks == 0 {
		return nil
	}
	r.Percent = int(float64(read) / float64(max(size, 1)) * 100)
	return &r
}

// health returns a device's health in the kubelet's terms (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1, constants.go).
func health(healthy bool) string {
	if healthy {
		return "Healthy"
	}
	return "Unhealthy"
}

// resources returns the configured resources, with the number of devices in each state.
func (s *Server) resources(snapshot *inventory.Snapshot) []api.Resource {
	registrations, all := s.Registrations(), []api.Resource{}
	for _, r := range s.Config.Load().Resources {
		shown := api.Resource{
			Name: r.Name, Class: r.Class, Shares: r.Shares, Inject: r.Inject, Optional: r.Optional, Serve: cmp.Or(r.Serve, config.ServePlugin),
			Reset: r.Reset.Method, Scrub: r.Reset.Scrub, When: r.Reset.When, Registration: registrations[r.Name],
		}
		count(&shown.Totals, snapshot.Offer(r.Name))
		for _, d := range snapshot.Others {
			if d.Taker == r.Name {
				shown.NotOffered++
			}
		}
		shown.Capacity = (shown.Healthy + shown.Unhealthy) * max(1, r.Shares)
		all = append(all, shown)
	}
	return all
}

// Status returns the state of metalplugd.
func (s *Server) Status() api.Status {
	snapshot, _ := s.Inventory.Snapshot()
	c := s.Config.Load()
	all := api.Status{
		Version: s.Version, Preview: s.Preview, Started: s.Started.UTC(), Uptime: time.Since(s.Started).Seconds(), Source: c.Hardware.Source(),
		Ready: snapshot.Version > 0, Configuration: s.configuration(),
		Resources: s.resources(snapshot), Cordons: []api.CordonedDevice{}, Unwritten: s.Unwritten(), Reading: readProgress(snapshot),
		Events: s.Inventory.Counts(),
	}
	for d := range snapshot.All() {
		if d.Cordon != nil && len(d.Members) == 0 { // a bundle's cordon is its member's cordon
			all.Cordons = append(all.Cordons, api.CordonedDevice{Device: d.Device.ID, Resource: d.Resource, Cordon: *d.Cordon})
		}
		if d.Present && d.Resource == "" {
			all.Devices.NotOffered++
		}
	}
	s.mu.Lock()
	all.Refused = append([]api.Refusal{}, s.refusals...)
	all.Driver = s.driver
	s.mu.Unlock()
	// The snapshot also contains resources that a reload removed while pods hold their devices.
	for _, offer := range snapshot.Offers {
		count(&all.Devices, offer)
	}
	return all
}

// count adds the devices in an offer to the totals.
func count(t *api.Totals, o *inventory.Offer) {
	for _, d := range o.Devices {
		switch {
		case d.Healthy:
			t.Healthy++
		case d.Cordon != nil:
			t.Cordoned++
			fallthrough
		default:
			t.Unhealthy++
		}
		if d.Held() {
			t.Allocated++
		}
	}
}
