// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"slices"

	"github.com/metalplug/metalplug/daemon/api"
)

// Claim is a ResourceClaim that holds a device.
type Claim struct {
	api.ClaimRef
	Ready bool `json:"ready,omitempty"` // whether the device was prepared, in this boot, for containers that use the claim
}

// Claims lists the claims that hold a device, in the order in which they got the device. Only a device with shares can have
// several claims. The methods return new slices and do not modify the old ones.
type Claims []Claim

// Has reports whether the claim with the given UID holds the device.
func (c Claims) Has(uid string) bool {
	return slices.ContainsFunc(c, func(one Claim) bool { return one.UID == uid })
}

// Ready reports whether the device is prepared for the claim with the given UID.
func (c Claims) Ready(uid string) bool {
	return slices.ContainsFunc(c, func(one Claim) bool { return one.UID == uid && one.Ready })
}

// Without returns all claims except the one with the given UID.
func (c Claims) Without(uid string) Claims {
	return slices.DeleteFunc(slices.Clone(c), func(one Claim) bool { return one.UID == uid })
}

// Started returns the claims after the device was prepared for these tenants.
func (c Claims) Started(tenants []string) Claims {
	c = slices.Clone(c)
	for i := range c {
		c[i].Ready = c[i].Ready || slices.Contains(tenants, OfClaim(c[i].UID))
	}
	return c
}

// Rebooted returns the claims after a boot, when no device is prepared.
func (c Claims) Rebooted() Claims {
	c = slices.Clone(c)
	for i := range c {
		c[i].Ready = false
	}
	return c
}
