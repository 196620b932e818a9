// SPDX-License-Identifier: Apache-2.0

package lease

import "slices"

// Rule is what a resource asks for between two tenants.
type Rule struct {
	Disk      bool // what a tenant writes there stays
	Shared    bool // several tenants, or the host, may have it at once: it is neither reset nor erased
	Scrubs    bool // the resource names a method to erase
	AtStart   bool // it is reset, and a disk erased, before the first container of a tenant
	AtRelease bool // the same after the last tenant
}

// Work is what the helper is asked to do to a device. The zero value asks for nothing.
type Work struct {
	Reset  bool // by the method of the resource
	Erase  bool
	Blank  bool // the disk must be proven blank
	Tenant bool // what is on the disk is its tenant's, and stays unless Erase is set
	ByHand bool // the operator ordered it: the content is not compared
}

// First reports whether a start is that of a first container of its tenant: the kubelet gave it the device and no container
// was started since, or none was started of these UIDs, where all are known.
func (l Lease) First(tenants []string) bool {
	named := len(tenants) > 0 && len(l.Tenants) > 0 && (!l.Unnamed || l.doubted())
	if l.Hold == Due || !named {
		return l.Hold != Started
	}
	return !l.StartedFor(tenants)
}

// Ambiguous reports whether a start for these tenants may be a repeated one, of which the data must stay, or that of the next
// tenant, which must not see the data. The disk of such a start is neither erased nor given.
func (l Lease) Ambiguous(tenants []string) bool { return l.doubted() && l.First(tenants) }

// doubted reports whether the tenant that has the device may be another than the one whose containers were started with it.
func (l Lease) doubted() bool { return l.Hold == Doubtful || l.Hold == Interrupted }

// StartedFor reports whether a container of each of these tenants was started, as far as that is known.
func (l Lease) StartedFor(tenants []string) bool {
	unknown := func(uid string) bool { return !slices.Contains(l.Tenants, uid) }
	return len(l.Tenants) == 0 || !slices.ContainsFunc(tenants, unknown)
}

// Preparation returns the work that precedes the start of a container. first is [Lease.First]; same reports whether the
// medium is the one that the tenant's containers were started with before.
func (l Lease) Preparation(r Rule, first, same bool) Work {
	if r.Shared {
		return Work{}
	}
	w := Work{Reset: r.AtStart}
	own := l.Residue || !first && same
	switch {
	case !r.Disk:
	case first && l.Residue && r.Scrubs: // also where the kubelet was faster than the clean-up
		w.Erase, w.Tenant = true, true
	case first || !own:
		w.Blank = true
	default:
		w.Tenant = true
	}
	return w
}

// CleanUp returns the work that follows the last tenant, or that makes good for work that failed.
func (l Lease) CleanUp(r Rule) Work {
	if r.Shared {
		return Work{}
	}
	w := Work{Reset: true, Tenant: l.Residue}
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
		w.Blank = true
	}
	return w
}
