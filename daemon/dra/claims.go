// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/metalplug/metalplug/daemon/api"
)

// PrepareResourceClaims passes claims to metalplugd, all at the same time. An erasure may take longer than the kubelet
// waits. The error then says that the work continues, and the kubelet repeats the call.
func (d *driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	now, err := d.fetch(ctx)
	if err != nil {
		return nil, err
	}
	results := make([]kubeletplugin.PrepareResult, len(claims))
	var all sync.WaitGroup
	for i, claim := range claims {
		all.Go(func() { results[i].Devices, results[i].Err = d.prepare(ctx, now, claim) })
	}
	all.Wait()
	answer := make(map[types.UID]kubeletplugin.PrepareResult)
	for i, claim := range claims {
		answer[claim.UID] = results[i]
	}
	return answer, nil
}

func (d *driver) prepare(ctx context.Context, now state, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	given, err := d.given(claim)
	if err != nil {
		return nil, err
	}
	ask := api.Claim{Namespace: claim.Namespace, Name: claim.Name}
	for _, g := range given {
		device, known := now.devices[g.Device]
		if !known {
			return nil, fmt.Errorf("metalplugd has no device %s", g.Device)
		}
		at := slices.IndexFunc(ask.Requests, func(r api.ClaimRequest) bool { return r.Name == g.Request })
		if at < 0 {
			at = len(ask.Requests)
			ask.Requests = append(ask.Requests, api.ClaimRequest{Name: g.Request, Admin: g.AdminAccess != nil && *g.AdminAccess})
		}
		ask.Requests[at].Devices = append(ask.Requests[at].Devices, device.ID)
	}
	var prepared api.Prepared
	if err := d.client.Post(ctx, "/v1/claims/"+string(claim.UID)+"/prepare", ask, &prepared); err != nil {
		return nil, err
	}
	names := make(map[string][]string) // the CDI devices of each request, which cover all its devices
	for _, r := range prepared.Requests {
		names[r.Name] = r.CDI
	}
	var devices []kubeletplugin.Device
	for _, g := range given {
		devices = append(devices, kubeletplugin.Device{Requests: []string{g.Request}, PoolName: g.Pool, DeviceName: g.Device, CDIDeviceIDs: names[g.Request]})
		delete(names, g.Request)
	}
	return devices, nil
}

// given returns the devices of this node that the scheduler has chosen for a claim.
func (d *driver) given(claim *resourceapi.ResourceClaim) (given []resourceapi.DeviceRequestAllocationResult, err error) {
	for _, c := range claim.Status.Allocation.Devices.Config {
		if c.Opaque != nil && c.Opaque.Driver == DriverName {
			return nil, errors.New("the claim or its class has parameters, which metalplug does not support -> remove the opaque configuration")
		}
	}
	for _, g := range claim.Status.Allocation.Devices.Results {
		if g.Driver != DriverName {
			continue
		}
		if g.Pool != d.Node {
			return nil, fmt.Errorf("device %s is in pool %s, not on this node", g.Device, g.Pool)
		}
		given = append(given, g)
	}
	return given, nil
}

// UnprepareResourceClaims releases the devices of claims. Cleaning the devices up does not delay the end of the pod.
func (d *driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	answer := make(map[types.UID]error)
	for _, claim := range claims {
		answer[claim.UID] = d.client.Post(ctx, "/v1/claims/"+string(claim.UID)+"/unprepare", nil, new(struct{}))
	}
	return answer, nil
}
