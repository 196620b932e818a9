// SPDX-License-Identifier: Apache-2.0

package lease

import "slices"

// Rule is the part of a resource's configuration that determines how metalplug resets and erases a device between two tenants. A
// device that several tenants can share, or that the host may use, has no rule, and is neither reset nor erased.
type Rule struct {
	Disk    bool // the device can keep a tenant's data
	Scrubs  bool // the resource has an erase method
	AtStart bool // before a tenant's first container, the device is reset, and a disk is also erased
}

// metalplugd saves leases in the background, so a crash loses all changes since the last completed write. At some points, metalplugd
// therefore waits until the state file contains all earlier changes. The test of this package explores crashes with the same
// functions.

// StartWaits reports whether metalplugd waits for the state file before a container starts. The parameter atRelease is true if the
// device is reset after its tenant has ended.
func (r Rule) StartWaits(atRelease bool) bool { return r.Disk || r.Scrubs || atRelease }

// Waits reports whether metalplugd waits for the state file before the helper begins the work, and before metalplugd reports that a
// clean-up has ended.
func (w Work) Waits() bool { return w.Erase }

// Content describes what a disk must contain. The helper checks this before it works on the disk.
type Content string

// Values of [Content].
const (
	AnyContent Content = ""
	Blank      Content = "blank"
	Unused     Content = "unused"      // blank, with evidence, because the helper's check reads only a sample
	OfTenant   Content = "of a tenant" // the tenant's data; it remains if the work does not erase it
)

// Work describes what the helper must do to a device. The zero value means that the helper has nothing to do.
type Work struct {
	Reset   bool // reset the device with the method that its resource configures
	Erase   bool
	ByHand  bool // the operator ordered the work, and the helper does not compare the content
	Content Content
}

// CheckpointOutdated reports whether the kubelet wrote its checkpoint before it allocated the device to the current tenant. The
// parameter tenants contains the tenants in the checkpoint. A checkpoint without tenants counts as older. While a new tenant
// waits for its first container, an up-to-date checkpoint lists this tenant. The checkpoint counts as older if all of its tenants
// have already had a container.
func (l Lease) CheckpointOutdated(tenants []string) bool {
	return len(tenants) == 0 || l.Hold == Due && l.startedFor(tenants)
}

// First reports whether the next container is the first one for these tenants. First returns true if no container has been
// started since the kubelet gave them the device. First also returns true if one of the tenants has not had a container yet.
func (l Lease) First(tenants []string) bool { return l.Hold == Due || !l.startedFor(tenants) }

// New reports whether none of these tenants has had a container yet. The other tenants of the device have ended.
func (l Lease) New(tenants []string) bool {
	return !slices.ContainsFunc(tenants, func(uid string) bool { return slices.Contains(l.Tenants, uid) })
}

// startedFor reports whether a container was started for each of these tenants.
func (l Lease) startedFor(tenants []string) bool {
	return !slices.ContainsFunc(tenants, func(uid string) bool { return !slices.Contains(l.Tenants, uid) })
}

// Preparation returns the work to do before a container starts. The parameter "first" is the result of [Lease.First]. The
// parameter "same" is true if the disk still has the medium that the tenant's earlier containers used. While the node was down,
// another machine may have used the disk. After a reboot, metalplug therefore attributes the content to a tenant only if this
// tenant starts again. If a container has been started since the last allocation, another tenant in the checkpoint does not prove
// that the content is an earlier tenant's. The checkpoint may have been outdated at that start.
func (l Lease) Preparation(r Rule, first, same bool) Work {
	w := Work{Reset: r.AtStart}
	switch {
	case !r.Disk:
	// The kubelet may have given the disk to the next pod before the clean-up. Such a disk is erased here.
	case l.Hold == Due && l.Residue && r.Scrubs:
		w.Erase, w.Content = true, OfTenant
	case !first && (l.Residue || same):
		w.Content = OfTenant
	default:
		w.Content = Unused
	}
	return w
}

// Ordered returns the work that an operator's order requires.
func (l Lease) Ordered(order Order) Work {
	w := Work{Reset: order == Reset, Erase: order == Erase, ByHand: true}
	if l.Residue {
		w.Content = OfTenant
	}
	return w
}

// CleanUp returns the work to do after the last tenant has ended. CleanUp also returns the work to repeat after a failure.
func (l Lease) CleanUp(r Rule) Work {
	w := Work{Reset: true}
	if l.Residue {
		w.Content = OfTenant
	}
	switch {
	case !r.Disk:
	case l.Order == Erase && r.Scrubs:
		w.Erase, w.ByHand = true, true
	case l.Residue && r.Scrubs:
		w.Erase = true
	case l.Order == Reset:
		w.ByHand = true
	case l.Residue:
	case l.Used:
		return Work{}
	default:
		w.Content = Blank
	}
	return w
}
