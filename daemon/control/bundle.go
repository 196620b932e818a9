// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/bundle"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// maxOthers is the maximum number of other devices that the explanation of a bundle lists.
const maxOthers = 4

// bundle explains why a bundle has its members, and shows the state of each member.
func (q *question) bundle(b *inventory.Status) (x api.Explanation) {
	first := b.Members[0]
	x.SysPath = first.Device.SysPath
	for _, m := range b.Members {
		why := m.Device.ID
		switch {
		case m != first:
			why += fmt.Sprintf(" is %s from it; %s", distance(first, m), q.listOthers(first, m))
		case first.Device.Udev != nil:
			why += "; the other members are near this device"
		}
		if !m.Healthy {
			why += "; Unhealthy: " + m.Reason
		}
		add(&x, "member", m.Resource, m.Healthy, why)
	}
	q.conclude(&x, b)
	return x
}

// distance returns the distance between two devices. If a device is not on PCI, the distance depends only on the NUMA
// nodes.
func distance(a, b *inventory.Status) api.Distance {
	return bundle.PlaceOf(a.Device).Distance(bundle.PlaceOf(b.Device))
}

// listOthers lists the nearest devices that could replace the given member of the bundle. For each of these devices, listOthers
// says why the device was not chosen.
func (q *question) listOthers(first, member *inventory.Status) string {
	var all []*inventory.Status
	for d := range q.snapshot.All() {
		if d.Taker == member.Resource && d.Bundle != member.Bundle {
			all = append(all, d)
		}
	}
	if len(all) == 0 {
		return "there is no other device"
	}
	slices.SortStableFunc(all, func(a, b *inventory.Status) int {
		return cmp.Compare(slices.Index(bundle.Distances, distance(first, a)), slices.Index(bundle.Distances, distance(first, b)))
	})
	var names []string
	for _, d := range all[:min(len(all), maxOthers)] {
		name := fmt.Sprintf("%s %s", distance(first, d), d.Device.ID)
		if function := device.FunctionIn(d.Device.SysPath); function != "" {
			name = fmt.Sprintf("%s %s", distance(first, d), path.Base(function))
		}
		switch {
		case d.Bundle != "":
			name += " in " + d.Bundle
		case d.Resource == "":
			name += " not offered"
		case !d.Healthy:
			name += " Unhealthy"
		default:
			name += " offered on its own"
		}
		names = append(names, name)
	}
	if more := len(all) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return "others: " + strings.Join(names, ", ")
}
