// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/lease"
)

// books contains what metalplugd has learned about a device from the kubelet.
type books struct {
	heldAs        []string  // the IDs under which pods may hold the device, sorted and never modified
	lastAllocated time.Time // when the kubelet last allocated the device to a container
	// booked means that the kubelet has listed a pod with the device since the allocation, or has finished its call to
	// Allocate.
	booked         bool
	checkpointPods []string // UIDs of the pods that the kubelet's checkpoint listed last
}

// holdAs adds IDs under which pods may hold the device.
func (b *books) holdAs(names []string) {
	b.heldAs = slices.Compact(slices.Sorted(slices.Values(slices.Concat(b.heldAs, names))))
}

// noteGiven records the node paths that a pod is about to get.
func (e *entry) noteGiven() {
	var given []string
	if e.sighting != nil {
		for _, node := range e.sighting.Allocation.Nodes {
			given = append(given, node.Host)
		}
	}
	if e.lease.Held() && (e.heldAsShares() || len(e.Claims) > 0) { // add to the other tenants' nodes
		given = append(given, e.Given...)
	}
	e.Given = slices.Compact(slices.Sorted(slices.Values(given)))
}

// hasMoved reports whether a pod got device node paths that no longer belong to the device. If the kubelet restarts one of the
// pod's containers, the container gets the same paths again. By then, they may lead to another device. A link whose name contains
// the device's identity always leads to the right device.
func (e *entry) hasMoved() bool {
	return e.sighting != nil && slices.ContainsFunc(e.Given, func(given string) bool {
		return !slices.ContainsFunc(e.sighting.Allocation.Nodes, func(n device.Node) bool { return n.Host == given })
	})
}

// recordAllocated records that pods are about to hold these devices. The leases change immediately. The next snapshot is
// published a little later, so that creating it does not delay the answer to the kubelet. The parameter asker identifies the
// kubelet that called Allocate. If asker is nil, the kubelet has not called Allocate. Instead, a container of the pod that
// already has the devices is about to start or restart.
func (l *leases) recordAllocated(as map[string][]string, now time.Time, asker *string) {
	started := asker == nil
	var newlyHeld []*entry
	for id, names := range as {
		e := l.entries[id]
		if e == nil || len(e.Claims) > 0 { // the device's endpoint has ended, so the kubelet will not get the answer
			continue
		}
		if e.lastAllocated, e.booked = now, e.booked && started; started {
			l.closeAllocate(e)
		}
		e.holdAs(names)
		if !e.lease.Held() {
			newlyHeld = append(newlyHeld, e)
		}
		if !started || !e.lease.Held() { // a restarted container gets the node paths from its first start
			e.noteGiven()
		}
		switch {
		case !started:
			e.work.givenSince, e.OwedBy = true, asker
			_ = l.applySilently(e, lease.Event{Name: lease.Allocate})
		case !e.lease.Held():
			l.recordStarted(e, lease.Event{Name: lease.Listed, Medium: e.Medium, Residue: e.lease.Residue})
		}
	}
	l.postLater(minPublishInterval, func(l *loop) { l.judgeAgain(newlyHeld...) })
}

// closeAllocates records that some kubelets' calls to Allocate have ended or will never get a result. The caller's function
// selects these kubelets.
func (l *leases) closeAllocates(by func(asker string) bool) {
	for _, e := range l.entries {
		if e.OwedBy != nil && by(*e.OwedBy) {
			e.lastAllocated, e.booked = time.Now(), true
			l.closeAllocate(e)
		}
	}
}

// closeAllocate records that the kubelet has finished the call to Allocate for a device.
func (l *leases) closeAllocate(e *entry) {
	if e.OwedBy != nil {
		e.OwedBy = nil
		l.saveLater()
	}
}

// judgeAgain queues a new verdict for the entries that still exist.
func (d *devices) judgeAgain(all ...*entry) {
	for _, e := range all {
		if d.entries[e.device.ID] == e {
			d.queueVerdict(e)
		}
	}
}

// noteTenantGone records that no pod holds a device any more. noteTenantGone requests a new inspection, because an earlier
// inspection may not show the state in which the pod left the device.
func (l *leases) noteTenantGone(e *entry) {
	if e.lease.Held() {
		_ = l.apply(e, lease.Event{Name: lease.Gone})
		l.invalidate(e)
	}
	l.queueVerdict(e)
}

// confirm applies the kubelet's answer. Only a free device can leave the device list, because the kubelet crashes if an allocated
// ID is missing from the list (kubernetes v1.35 and v1.36, devicemanager). The kubelet takes a device from one pod before it
// gives the device to the next pod. A checkpoint that is newer than a call to Allocate therefore names the pod that the call was
// for. If the kubelet has restarted since the call, either the call has failed or its result is in the checkpoint.
func (l *loop) confirm(a kubelet.Answer) {
	l.closeAllocates(func(by string) bool { return by != "" && a.Kubelet != "" && by != a.Kubelet })
	for _, e := range l.entries {
		if a.Booked != nil {
			if e.checkpointPods = a.Booked[e.name()]; len(e.checkpointPods) > 0 && a.Written.Add(fileClock).After(e.lastAllocated) {
				l.closeAllocate(e)
			}
		}
		l.confirmOne(e, a.Holdings[e.name()], a.Asked)
	}
}

func (l *leases) confirmOne(e *entry, holding kubelet.Holding, asked time.Time) {
	switch {
	case len(e.Claims) > 0: // the kubelet's records of device plugins do not contain claims
	case holding == kubelet.Held, holding == kubelet.Named:
		if holding == kubelet.Held && asked.After(e.lastAllocated) {
			e.booked = true
			l.closeAllocate(e)
		}
		l.listedByKubelet(e)
	case holding == kubelet.Noted:
		l.resend[e.listResource()] = true
		// The kubelet gets no more lists for this resource, but it writes the checkpoint after a list for any resource.
		if l.rule(e.listResource()) == nil {
			for _, r := range l.rules {
				l.resend[r.Resource] = true
			}
		}
	case holding == kubelet.Free && l.mayBeFree(e, asked):
		l.recordFree(e)
	}
}

// listedByKubelet records that the kubelet lists a pod that holds a device. If the call to Allocate is recent, the kubelet will
// still call PreStartContainer before it starts a container. Otherwise, the kubelet may have started a container while metalplugd
// was not registered. If the checkpoint does not name the pod yet, metalplugd sends a list, which makes the kubelet write the
// checkpoint.
func (l *leases) listedByKubelet(e *entry) {
	recent := time.Since(e.lastAllocated) <= l.Grace
	switch {
	case e.lease.Held() && (e.lease.Used || e.lease.Hold == lease.Due || recent):
	case !e.lease.Used && recent:
		_ = l.apply(e, lease.Event{Name: lease.Allocate})
	case len(e.checkpointPods) == 0:
		l.resend[e.listResource()] = true
	case l.keepsData(e) && !e.heldAsShares() && (e.lease.State != lease.Free || !l.ownsContent(e)):
		// The data may be this pod's or an earlier pod's. metalplug refuses to start a container with such a disk, and does not
		// erase the disk.
		_ = l.apply(e, lease.Event{Name: lease.Allocate})
		_ = l.apply(e, lease.Event{Name: lease.Changed, Reason: "metalplugd did not see the start of the pod"})
	default:
		l.recordStarted(e, lease.Event{Name: lease.Listed, Tenants: e.checkpointPods, Medium: e.Medium, Residue: l.ownsContent(e)})
	}
}

// recordStarted records that a container may be using the device from now on.
func (l *leases) recordStarted(e *entry, event lease.Event) {
	_ = l.apply(e, event)
	e.Fingerprint, e.seenFingerprint = "", ""
	e.work.delay = ""
	if l.keepsData(e) {
		l.podData[e.device.ID] = true
	}
}

// keepsData reports whether a device can keep a tenant's data. The result is false if the device's resource offers disks that the
// host uses.
func (d *devices) keepsData(e *entry) bool {
	rule := d.rule(e.resource)
	return e.isDisk() && (rule == nil || !rule.AllowInUse)
}

// checkExposed returns an error if a pod may have left data on a disk before a reload allowed other pods to read the disk.
func (d *devices) checkExposed(e *entry) error {
	if !d.podData[e.device.ID] || e.lease.Held() || d.keepsData(e) {
		return nil
	}
	return fmt.Errorf("a pod may have left data on the disk, and allow_in_use is set now; remove allow_in_use, "+
		"run \"metalplugctl reset %s --scrub zero\", and set allow_in_use again", e.device.ID)
}

// ownsContent reports whether a device's content is treated as the tenant's once the tenant has started a container. The device
// must be a disk that was proven to be unused before, and no other disk may report the same medium. The disk's resource must not
// offer disks with the host's data, or offer one disk to several tenants.
func (l *leases) ownsContent(e *entry) bool {
	disk := e.Disk
	disk.Appearance = cmp.Or(e.work.provenDiskseq, disk.Appearance)
	return l.keepsData(e) && !e.heldAsShares() && !l.evidence.HasTwins(e.Medium) &&
		(l.Host.Touch.Survey == nil || l.evidence.Proves(disk))
}

// heldAsShares reports whether pods hold a device under its share IDs.
func (e *entry) heldAsShares() bool {
	return slices.ContainsFunc(e.heldAs, func(id string) bool { return id != e.device.ID && id != e.bundle })
}

// mayBeFree reports whether a device that the kubelet does not list may be treated as free. The kubelet must have listed the
// device before, or must have finished the call to Allocate. Elapsed time proves nothing, because the kubelet may be stopped for
// any length of time during the call. If pods hold a device under several share IDs, a listed share shows nothing about the
// others.
func (l *leases) mayBeFree(e *entry, asked time.Time) bool {
	switch {
	case e.OwedBy != nil:
		return false
	case e.booked && len(e.heldAs) <= 1:
		return asked.After(e.lastAllocated)
	}
	return time.Since(e.lastAllocated) > l.Grace && (e.lease.Hold != lease.Due || time.Since(l.began) > l.Grace)
}

// recordFree records that no pod can hold a device any longer. Only such a device may leave the device list. Before it leaves the
// list, the device is cleaned up as its old resource requires. A disk also stays in the list until a probe has returned a result.
func (l *leases) recordFree(e *entry) {
	l.noteTenantGone(e)
	// Send a new list, which omits the share IDs that the resource no longer has.
	if e.heldAsShares() {
		l.resend[e.resource] = true
	}
	e.heldAs = nil
	f := l.facts(e)
	// A device stays in the list if the only pending work is the search for processes that have it open. Otherwise the device would
	// leave the list and come back immediately. In between, the kubelet might allocate it from the older list.
	waits := e.sighting != nil && (f.NeedsClearing() || e.sighting.Unread && f.OfferedWithData() ||
		errors.Is(f.Unfit(), device.ErrUnproven) && f.Evident() && f.Complete())
	switch {
	case f.CanLeave():
		e.bundle, e.bundleResource, e.vacant = "", "", true
	case e.offered && (f.Unfit() == nil || waits):
	default:
		e.offered, e.work.delay, e.membership = false, "", membership{}
		if !e.isDisk() { // a disk's lease continues, because the disk must be erased if it comes back
			e.lease = newLease()
		}
		if e.sighting != nil {
			e.resource = e.sighting.Resource // so that the old resource does not offer the device again
			l.inspect(e)
		}
	}
}

// restoreCheckpoint adds the devices that the kubelet's checkpoint lists and the state file lacks.
func (l *loop) restoreCheckpoint() {
	for _, resource := range slices.Sorted(maps.Keys(l.CheckpointDevices)) {
		r := l.rule(resource)
		for id, known := range l.CheckpointDevices[resource] {
			switch {
			case known.Members != nil, r != nil && r.Bundle != nil: // a bundle, even of a resource that a reload has changed
				bundler{l}.restoreBundle(resource, id, known)
			case r != nil:
				if e := l.restoreDevice(*r, id, known); e.bundle != "" { // the state file is older, and still names a bundle
					e.membership = membership{}
				}
			}
		}
	}
}

// restoreDevice restores a device that a pod holds according to the kubelet's checkpoint.
func (l *loop) restoreDevice(r device.Rule, id string, known kubelet.Known) *entry {
	e := l.entries[id]
	switch {
	case e == nil:
		e = &entry{device: &device.Device{ID: id, Class: r.Class, NUMANode: known.NUMANode}, resource: r.Resource, lease: newLease()}
		l.entries[id] = e
		// A container may have been started with the device, so a disk's content is unknown.
		l.recordStarted(e, lease.Event{Name: lease.Listed, Tenants: known.Pods})
	case len(e.Claims) > 0:
		return e
	case !e.lease.Held():
		_ = l.apply(e, lease.Event{Name: lease.Allocate}) // metalplugd ended before it had recorded the call to Allocate
	}
	e.offered, e.resource = true, r.Resource // the state file may be older than the device list
	e.holdAs(known.As)
	l.queueVerdict(e)
	return e
}
