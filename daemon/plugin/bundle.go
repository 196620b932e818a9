// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"

	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
)

// parts returns the given devices, with each bundle replaced by its members.
func parts(devices []*inventory.Status) (all []*inventory.Status) {
	for _, d := range devices {
		all = append(all, d.Parts()...)
	}
	return all
}

// memberGroup contains the members of bundles that belong to one resource, and a service for this resource.
type memberGroup struct {
	service
	devices []*inventory.Status
}

// byResource groups the given bundles' members by resource. The order of the members does not change. If the service's resource
// has no bundles, the result is one group with all devices. The error means that a reload has removed a member's resource.
func (s service) byResource(devices []*inventory.Status) (all []memberGroup, err error) {
	if s.Resource.Member == nil {
		return []memberGroup{{s, devices}}, nil
	}
	for _, d := range parts(devices) {
		at := slices.IndexFunc(all, func(s memberGroup) bool { return s.Resource.Name == d.Resource })
		if at < 0 {
			resource, err := s.Resource.Member(d.Resource)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", d.Device.ID, err)
			}
			at, all = len(all), append(all, memberGroup{service: service{Endpoint: &Endpoint{Resource: resource, Host: s.Host}}})
		}
		all[at].devices = append(all[at].devices, d)
	}
	return all, nil
}

// annotation returns the annotation that lists a bundle's members.
func annotation(bundle *inventory.Status) (key, value string) {
	members := make([]kubelet.Member, len(bundle.Members))
	for i, m := range bundle.Members {
		members[i] = kubelet.Member{Resource: m.Resource, ID: m.Device.ID}
	}
	return kubelet.Annotation(bundle.Device.ID, members)
}

// ready returns an error if the starting container cannot use the devices. The device nodes or CDI names that the container got
// before a reboot may now belong to other devices. The snapshot may be older than the call to Allocate. Before ready refuses a node,
// it therefore waits for the newest state from the inventory.
func (s service) ready(ctx context.Context, devices []*inventory.Status) error {
	all, err := s.byResource(devices)
	if err != nil {
		return err
	}
	for _, member := range all {
		for _, d := range member.devices {
			if !d.Moved || member.Resource.CDI != nil {
				continue
			}
			now, err := s.Inventory.Current(ctx, d.Device.ID)
			if err != nil {
				return fmt.Errorf("check the nodes of %s: %w", d.Device.ID, err)
			}
			if now.Moved {
				return fmt.Errorf("%s no longer has the node that its pod got, and that node may belong to another device now; delete the pod", d.Device.ID)
			}
		}
		if _, err := member.cdiNames(member.devices); err != nil {
			return err
		}
	}
	return nil
}
