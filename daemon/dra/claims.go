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
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/metalplug/metalplug/daemon/api"
)

// PrepareResourceClaims passes all given claims to metalplugd at the same time. If a device must be erased, the call may take
// longer than the kubelet waits. In that case, the claim's result is an error, the work continues, and the kubelet repeats the
// call. If metalplugd stops before it answers, the call returns an error, and [requests.intercept] repeats it.
func (d *driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	// The last state may be slightly out of date. An old state does no harm, because metalplugd checks each device when it prepares
	// the claim.
	now := *d.state.Load()
	if now.devices == nil { // before metalplugd's first answer
		var err error
		if now, err = d.fetch(ctx); err != nil {
			return nil, err
		}
	}
	results := make([]kubeletplugin.PrepareResult, len(claims))
	var all sync.WaitGroup
	for i, claim := range claims {
		all.Go(func() { results[i].Devices, results[i].Err = d.prepare(ctx, now, claim) })
	}
	all.Wait()
	answer := make(map[types.UID]kubeletplugin.PrepareResult)
	for i, claim := range claims {
		if errors.Is(results[i].Err, api.ErrNoAnswer) {
			return nil, results[i].Err
		}
		if results[i].Err != nil {
			d.Log.Warn("claim refused", "action", "prepare", "err", fmt.Errorf("claim %s of %s/%s: %w", claim.UID, claim.Namespace, claim.Name, results[i].Err))
		}
		answer[claim.UID] = results[i]
	}
	return answer, nil
}

// prepare passes a claim to metalplugd, together with the devices on this node that the scheduler has chosen for the claim. If
// the claim is invalid, metalplugd records the reason for "metalplugctl doctor", and refuses the claim.
func (d *driver) prepare(ctx context.Context, now state, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	var devices []kubeletplugin.Device
	ask := api.Claim{Namespace: claim.Namespace, Name: claim.Name}
	for _, c := range claim.Status.Allocation.Devices.Config {
		if c.Opaque != nil && c.Opaque.Driver == DriverName {
			ask.Invalid = "the claim or its class has parameters, which metalplug does not support -> remove the opaque configuration"
		}
	}
	for _, g := range claim.Status.Allocation.Devices.Results {
		device, known := now.devices[g.Device]
		switch {
		case g.Driver != DriverName:
			continue
		case ask.Invalid != "": // the first reason is enough
		case g.Pool != d.Node:
			ask.Invalid = fmt.Sprintf("device %s is in pool %s, not on this node", g.Device, g.Pool)
		case !known:
			ask.Invalid = fmt.Sprintf("metalplugd does not have the device %s of the claim -> restore the device, or delete the pod and its claim", g.Device)
		}
		devices = append(devices, kubeletplugin.Device{Requests: []string{g.Request}, PoolName: g.Pool, DeviceName: g.Device, ShareID: g.ShareID})
		i := slices.IndexFunc(ask.Requests, func(r api.ClaimRequest) bool { return r.Name == g.Request })
		if i < 0 {
			i = len(ask.Requests)
			ask.Requests = append(ask.Requests, api.ClaimRequest{Name: g.Request, Admin: g.AdminAccess != nil && *g.AdminAccess})
		}
		if r := &ask.Requests[i]; !slices.Contains(r.Devices, device.ID) { // a request may contain several shares of a device
			r.Devices = append(r.Devices, device.ID)
		}
	}
	var prepared api.Prepared
	if err := d.client.Post(ctx, "/v1/claims/"+string(claim.UID)+"/prepare", ask, &prepared); err != nil {
		return nil, err
	}
	for _, r := range prepared.Requests { // the result lists the CDI names for all of a request's devices under the first device
		if first := slices.IndexFunc(devices, func(d kubeletplugin.Device) bool { return d.Requests[0] == r.Name }); first >= 0 {
			devices[first].CDIDeviceIDs = r.CDI
		}
	}
	return devices, nil
}

// recordFailure makes metalplugd record why claims cannot be prepared, because "metalplugctl doctor" asks only metalplugd. The
// reason is shortened, because metalplugd limits the size of a request.
func (d *driver) recordFailure(claims []*drapb.Claim, reason error) {
	ctx, end := context.WithTimeout(context.Background(), retryInterval)
	defer end()
	for _, c := range claims {
		invalid := api.Claim{Namespace: c.Namespace, Name: c.Name, Invalid: fmt.Sprintf("%.1000v", reason)}
		_ = d.client.Post(ctx, "/v1/claims/"+c.Uid+"/prepare", invalid, new(api.Prepared)) // metalplugd refuses the claim
	}
}

// UnprepareResourceClaims releases the devices of all given claims at the same time, because metalplugd may be working on one of
// the claims. UnprepareResourceClaims does not wait until the devices have been cleaned up, so the pod can end without delay.
func (d *driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	answer := make(map[types.UID]error)
	errs := make([]error, len(claims)) // each goroutine writes its own element
	var all sync.WaitGroup
	for i, claim := range claims {
		all.Go(func() { errs[i] = d.client.Post(ctx, "/v1/claims/"+string(claim.UID)+"/unprepare", nil, new(struct{})) })
	}
	all.Wait()
	for i, claim := range claims {
		answer[claim.UID] = errs[i]
	}
	return answer, nil
}
