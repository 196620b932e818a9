// SPDX-License-Identifier: Apache-2.0

package lease

import "slices"

// Rule is the part of a resource's configuration that applies between two tenants. A device that several tenants or the
// host can use at the same time has no rule. It is neither reset nor erased.
type Rule struct {
	Disk    bool // the device keeps a tenant's data
	Scrubs  bool // the resource has an erase method
	AtStart bool // the device is reset, and a disk erased, before the first container of a tenant
}

// Content is what a disk must hold before the helper works on it.
type Content string

// The helper checks the disk for one of these contents before it works on it.
const (
	AnyContent Content = ""
	Blank      Content = "blank"
	OfTenant   Content = "of a tenant" // kept unless the work erases it
)

// Work is a request of the worker to the helper. The zero value requests nothing.
type Work struct {
	Reset   bool // by the method of the resource
	Erase   bool
	ByHand  bool // the operator ordered it, and the helper does not compare the content
	Content Content
}

// Behind reports whether the kubelet's checkpoint, which lists these tenants, is older than the allocation to the
// current tenant. This is so if it lists no tenant, or if after an Allocate it lists only tenants whose containers were
// started before.
func (l Lease) Behind(tenants []string) bool {
	return len(tenants) == 0 || l.Hold == Due && l.startedFor(tenants)
}

// First reports whether the container to start is the first one of these tenants. It is the first if none was started
// since the kubelet gave them the device, or if none was started for one of them.
func (l Lease) First(tenants []string) bool { return l.Hold == Due || !l.startedFor(tenants) }

// startedFor reports whether a container was started for each of these tenants.
func (l Lease) startedFor(tenants []string) bool {
	return !slices.ContainsFunc(tenants, func(uid string) bool { return !slices.Contains(l.Tenants, uid) })
}

// Preparation returns the work to do before a container starts. first is the result of [Lease.First]. same reports
// whether the medium is the one that earlier containers of the tenant were started with. After the node went down, the
// content counts as a tenant's only for the same tenant, because the disk may have been used in another machine.
func (l Lease) Preparation(r Rule, first, same bool) Work {
	w := Work{Reset: r.AtStart}
	switch {
	case !r.Disk:
	case first && l.Residue && r.Scrubs && l.Hold != Interrupted: // also if the kubelet was faster than the clean-up
		w.Erase, w.Content = true, OfTenant
	case !first && (l.Residue || same):
		w.Content = OfTenant
	default:
		w.Content = Blank
	}
	return w
}

// CleanUp returns the work to do after the last tenant has ended, or the retry of work that failed.
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
