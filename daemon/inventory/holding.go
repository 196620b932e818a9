// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/lease"
)

// allocations are what the kubelet gives to pods.
type allocations struct {
	*leases
	owing map[*entry]bool // those that are owed
	began time.Time       // when the daemon started
}

// books are the kubelet's records of a device.
type books struct {
	as        []string  // the IDs by which pods may hold it, sorted, and never written
	allocated time.Time // when a container was last given it
	booked    bool      // since then the kubelet has listed a pod that holds it, or is known to be done with that Allocate
	owed      bool      // it was allocated, and nothing has shown that the kubelet is done with that
	pods      []string  // UIDs of those that the kubelet's checkpoint named last
	asker     string    // the kubelet that asked for that, or empty if unknown
}

// holdAs notes IDs by which pods may hold it.
func (b *books) holdAs(names []string) {
	b.as = slices.Compact(slices.Sorted(slices.Values(slices.Concat(b.as, names))))
}

// handed notes by what its next pod is about to be given a device.
func (e *entry) handed() {
	var given []string
	if e.sighting != nil {
		for _, node := range e.sighting.Allocation.Nodes {
			given = append(given, node.Host)
		}
	}
	if e.lease.Held() && e.shared() { // the nodes of the other pods
		given = append(given, e.Given...)
	}
	e.Given = slices.Compact(slices.Sorted(slices.Values(given)))
}

// moved reports whether a pod was given nodes of a device that are not its nodes any more. The kubelet starts the containers of
// that pod with them again. Links such as those by identity stay.
func (e *entry) moved() bool {
	return e.sighting != nil && slices.ContainsFunc(e.Given, func(given string) bool {
		return !slices.ContainsFunc(e.sighting.Allocation.Nodes, func(n device.Node) bool { return n.Host == given })
	})
}

// allocated notes that pods are about to hold these devices. It takes effect at once; the readers hear of it a little later,
// since the kubelet is waiting for our answer just now. started: it is not given to a pod, but a container of its pod is
// about to be started, perhaps again, or its pod is gone by now.
func (a *allocations) allocated(as map[string][]string, now time.Time, started bool) {
	var held []*entry
	for id, names := range as {
		e := a.entries[id]
		if e == nil {
			continue
		}
		if e.allocated, e.booked = now, e.booked && started; started {
			a.closeAllocate(e)
		}
		e.holdAs(names)
		if !e.lease.Held() {
			held = append(held, e)
		}
		if !started || !e.lease.Held() { // a container that is started again has the nodes of before
			e.handed()
		}
		switch {
		case !started:
			e.atWork().given = true
			_ = a.change(e, lease.Event{Name: lease.Allocate})
		case !e.lease.Held():
			a.started(e, lease.Event{Name: lease.Listed, Medium: e.Medium, Residue: e.lease.Residue})
		}
	}
	if len(held) > 0 {
		a.later(publishGap, func(l *loop) { l.judgeAgain(held...) })
	}
}

// closeAllocates notes that some kubelets have booked the devices that they allocated, or never will.
func (a *allocations) closeAllocates(by func(asker string) bool) {
	for e := range a.owing {
		if by(e.asker) {
			e.allocated, e.booked = time.Now(), true
			a.closeAllocate(e)
		}
	}
}

// closeAllocate notes that the kubelet is done with the Allocate of a device.
func (a *allocations) closeAllocate(e *entry) {
	if e.owed {
		e.owed, e.line, a.unsaved = false, nil, true
		delete(a.owing, e)
	}
}

// judgeAgain queues a judgement of those entries that are still there.
func (d *devices) judgeAgain(all ...*entry) {
	for _, e := range all {
		if d.entries[e.device.ID] == e {
			d.changed(e)
		}
	}
}

// vacate notes that no pod holds a device any more. The next look shows the state in which the pod left it.
func (a *allocations) vacate(e *entry) {
	if e.lease.Held() {
		_ = a.apply(e, lease.Event{Name: lease.Gone})
		a.lookAnew(e)
	}
	a.changed(e)
}

// confirm takes in the kubelet's answer. Only a free device can leave the device list, since the kubelet crashes over an
// allocated ID that it does not know (kubernetes v1.35 and v1.36, devicemanager). It takes a device from one pod before it
// gives it to the next, so that a later record names the pod that the daemon knows of. An allocation of another kubelet has
// ended with that kubelet, or is in the checkpoint.
func (l *loop) confirm(a kubelet.Answer) {
	l.closeAllocates(func(by string) bool { return by != "" && a.Kubelet != "" && by != a.Kubelet })
	if a.Booked != nil {
		for _, e := range l.entries {
			if e.pods = a.Booked[e.name()]; len(e.pods) > 0 && a.Written.Add(fileClock).After(e.allocated) {
				l.closeAllocate(e)
			}
		}
	}
	bundles := bundler{l}.byBundle()
	for id, holding := range a.Holdings {
		if e := l.entries[id]; e != nil {
			l.confirmOne(e, holding, a.Asked)
		}
		members := bundles[id]
		for _, e := range members {
			l.confirmOne(e, holding, a.Asked)
		}
		if slices.ContainsFunc(members, func(e *entry) bool { return e.bundle == "" }) { // the others are as free as the one that has left
			for _, e := range members {
				if e.bundle != "" {
					e.aside = lostMember
					l.confirmOne(e, holding, a.Asked)
				}
			}
		}
	}
}

func (a *allocations) confirmOne(e *entry, holding kubelet.Holding, asked time.Time) {
	switch {
	case holding == kubelet.Held, holding == kubelet.Named:
		if holding == kubelet.Held && asked.After(e.allocated) {
			e.booked = true
			a.closeAllocate(e)
		}
		a.listedByKubelet(e)
	case holding == kubelet.Noted:
		a.resend[e.list()] = true
		if a.rule(e.list()) == nil { // the kubelet is sent no list of it any more, and writes the checkpoint with any
			for _, r := range a.rules {
				a.resend[r.Resource] = true
			}
		}
	case holding == kubelet.Free && a.mayBeFree(e, asked):
		a.free(e)
	}
}

// listedByKubelet notes that the kubelet lists a pod that holds a device. The kubelet may have started a container before we were
// registered again. It has still to announce the start of a container that it was given a device for and has not announced. If
// its checkpoint does not name the pod yet, the kubelet writes it when it is sent the list.
func (a *allocations) listedByKubelet(e *entry) {
	recent := time.Since(e.allocated) <= a.Grace
	switch {
	case e.lease.Held() && (e.lease.Used || e.lease.Hold == lease.Due || recent):
	case !e.lease.Used && recent:
		_ = a.apply(e, lease.Event{Name: lease.Allocate})
	case len(e.pods) == 0:
		a.resend[e.list()] = true
	default:
		// Content without evidence from before the pod is not the pod's.
		residue := e.lease.Residue || e.lease.State == lease.Free && a.owns(e)
		a.started(e, lease.Event{Name: lease.Listed, Tenants: e.pods, Medium: e.Medium, Residue: residue})
	}
}

// started notes that a container may be using the device from now on.
func (l *leases) started(e *entry, event lease.Event) {
	_ = l.apply(e, event)
	e.left, e.seen = left{}, left{}
	e.delayed("")
}

// owns reports whether the content of a device counts as its tenant's once a container was started with it. It is a disk
// without a twin, and its resource gives out neither disks with the host's data nor one disk to several tenants.
func (l *leases) owns(e *entry) bool {
	rule := l.rule(e.resource)
	return e.isDisk() && (rule == nil || !rule.AllowInUse) && !e.shared() && !l.evidence.HasTwins(e.Medium)
}

// shared reports whether pods hold a device by the IDs of its shares.
func (e *entry) shared() bool {
	return slices.ContainsFunc(e.as, func(id string) bool { return id != e.device.ID && id != e.bundle })
}

// mayBeFree reports whether a device that is not in the kubelet's books may count as free. It was in them, or the kubelet is
// known to be done with its Allocate. A stopped kubelet may take any time for that (R12), so that time alone proves nothing.
// With one share listed, the others are not known.
func (a *allocations) mayBeFree(e *entry, asked time.Time) bool {
	switch {
	case e.owed:
		return false
	case e.booked && len(e.as) <= 1:
		return asked.After(e.allocated)
	}
	return time.Since(e.allocated) > a.Grace && (e.lease.Hold != lease.Due || time.Since(a.began) > a.Grace)
}

// free notes that certainly no pod holds a device. Only now it may leave the device list. First it is cleared by the rule of
// the resource that it leaves. A disk waits for an answer about its content.
func (a *allocations) free(e *entry) {
	a.vacate(e)
	// IDs of shares that the resource does not have any more leave the list.
	if e.shared() {
		a.resend[e.resource] = true
	}
	e.as = nil
	f := a.facts(e)
	// A device that waits only for the question about open files would be back at once, and the kubelet might give it out by
	// the older list.
	waits := e.sighting != nil && (f.Uncleared() || e.sighting.Unread && f.Spared() ||
		errors.Is(f.Unfit(), device.ErrUnproven) && f.Evident() && f.Complete())
	if e.offered = e.offered && (f.Unfit() == nil || waits); !e.offered {
		e.leave()
		if e.sighting != nil {
			e.resource = e.sighting.Resource // or it would be offered by the old one once more
			a.look(e)
		}
	}
	a.changed(e)
}

// leave ends the lease of a device that is no longer in the device list. The lease of a disk goes on, since the disk may come
// back and has to be erased.
func (e *entry) leave() {
	e.delayed("")
	e.membership = membership{}
	if !e.isDisk() {
		e.lease = newLease()
	}
}

// restoreRemembered takes in the devices that the kubelet knows and the store does not.
func (l *loop) restoreRemembered() {
	for _, r := range l.rules {
		for id, known := range l.Remembered[r.Resource] {
			if r.Bundle != nil {
				bundler{l}.rememberBundle(r.Resource, id, known)
			} else if e := l.remember(r, id, known); e.bundle != "" { // the kubelet knows better than an older state file
				e.membership = membership{}
			}
		}
	}
}

func (l *loop) remember(r device.Rule, id string, known kubelet.Known) *entry {
	e := l.entries[id]
	switch {
	case e == nil:
		e = &entry{
			device:   &device.Device{ID: id, Class: r.Class, NUMANode: known.NUMANode},
			resource: r.Resource, offered: true, lease: newLease(),
		}
		l.entries[id] = e
		// A container may have been started with it. The content of a disk is not known.
		l.started(e, lease.Event{Name: lease.Listed, Tenants: known.Pods})
	case !e.lease.Held() || e.lease.First(known.Pods):
		_ = l.apply(e, lease.Event{Name: lease.Allocate}) // the daemon ended before it could note it
	}
	e.holdAs(known.As)
	l.changed(e)
	return e
}
