// SPDX-License-Identifier: Apache-2.0

package lease

import "slices"

// Rule is what a resource asks for between two tenants. A device that several tenants or the host may have at once has no
// rule. It is neither reset nor erased.
type Rule struct {
	Disk    bool // a tenant's data stays on the device
	Scrubs  bool // the resource names a method to erase
	AtStart bool // the device is reset, and a disk erased, before the first container of a tenant
}

// Content is what a disk must hold before the helper works on it.
type Content string

// The helper checks the disk for one of these contents before it works on it.
const (
	AnyContent Content = ""
	Blank      Content = "blank"
	OfTenant   Content = "of a tenant" // it stays unless the work erases it
)

// Work is what the worker asks the helper to do to a device. The zero value asks for nothing.
type Work struct {
	Reset   bool // by the method of the resource
	Erase   bool
	ByHand  bool // the operator ordered it, and the helper does not compare the content
	Content Content
}

// Behind reports whether the kubelet's checkpoint, which names these tenants, is older than the tenant that has the device.
// It names none, or after an Allocate only tenants that containers were started for before.
func (l Lease) Behind(tenants []string) bool {
	return len(tenants) == 0 || l.Hold == Due && l.startedFor(tenants)
}

// First reports whether a start for these tenants is that of a first container. Either the kubelet gave them the device and
// no container was started since, or none was started for one of them.
func (l Lease) First(tenants []string) bool { return l.Hold == Due || !l.startedFor(tenants) }

// startedFor reports whether a container was started for each of these tenants.
func (l Lease) startedFor(tenants []string) bool {
	return !slices.ContainsFunc(tenants, func(uid string) bool { return !slices.Contains(l.Tenants, uid) })
}

// Preparation returns the work that precedes the start of a container. first is [Lease.First]. same reports whether the
// medium is the one that the tenant's containers were started with before. After the node went down, the content counts
// only for the same tenant, since the disk may have served elsewhere.
func (l Lease) Preparation(r Rule, first, same bool) Work {
	w := Work{Reset: r.AtStart}
	switch {
	case !r.Disk:
	case first && l.Residue && r.Scrubs && l.Hold != Interrupted: // also where the kubelet was faster than the clean-up
		w.Erase, w.Content = true, OfTenant
	case !first && (l.Residue || same):
		w.Content = OfTenant
	default:
		w.Content = Blank
	}
	return w
}

// CleanUp returns the work that follows the last tenant, or that makes good for work that failed.
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
