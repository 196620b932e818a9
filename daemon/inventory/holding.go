// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"slices"
	"time"
)

// Holding is how the kubelet's pods stand to a device.
type Holding int

const (
	// Unknown: the kubelet did not say.
	Unknown Holding = iota
	// Held: a pod holds it, as the kubelet lists it.
	Held
	// Named: the kubelet lists no pod that holds it, but has written it into its checkpoint anew, as for a pod whose init
	// container alone has a device.
	Named
	// Remembered: no pod holds it, but the kubelet's checkpoint still names it. The kubelet writes the checkpoint anew
	// when it is sent a list, without the pods that it knows to be gone.
	Remembered
	// Free: certainly no pod holds it.
	Free
)

// tenancy is how pods stand to a device, one after the other.
type tenancy struct {
	held     bool // a pod holds it, as far as is known
	due      bool // allocated since a container was last started with it: what precedes a start is to be done in full
	dirty    bool // a container was started with it since it was last cleared
	leftover bool // what is on the disk is what a pod has left there
	booked   bool // since it was last allocated the kubelet has listed a pod that holds it

	as         []string  // the IDs by which pods may hold it, sorted; never written, only replaced
	allocated  time.Time // when a container was last given it
	appearance string    // of the disk, as [device.Target.Appearance] tells it: a leftover is of that one
	medium     string    // what the disk itself is known by, also in another boot, as [device.Target.Medium] tells it
	given      string    // the medium that containers were started with since it was last cleared; empty: it did not say
	left       remains   // what the pod has left, when nobody has had it since
	seen       remains   // the same at the last look
	wrote      wrote     // what the kernel had counted as written when a look noted left
	pods       []string  // UIDs of those that containers were started for since it was last cleared; never written, only replaced

	initialised string // the [device.Rule].Init that was done to this appearance of the hardware
	instance    uint64 // of it, see [device.Host.Instance]

	worked *work // nil: nothing was ever done to it
}

// work is what is being done to a device, or was last, and what is wrong with that. It is apart since it is rare.
type work struct {
	failed   string    // why it could not be reset or erased
	byHand   ByHand    // what of that somebody tried by hand
	lingerer string    // who has it open still, though its pod is gone
	under    int       // resets and erasures under way
	why      string    // it is Unhealthy meanwhile
	own      bool      // what the hardware does since may still be our own doing
	back     time.Time // until then it may be missing after our own reset
	anew     *subject  // of which a new look is wanted
	after    int       // how many looks have come back by then
	uninit   string    // why it could not be initialised
	settling time.Time // until then the hardware may be another after that

	from      string // the appearance of the disk when the work began
	vouched   string // the one that the helper has proven to be the same medium after it
	suspended bool   // what a pod has left was on another appearance than is seen now, which nothing vouches for yet
	recheck   bool   // the disk was just read in full, and is probed once more before it is offered
	unread    string // why the disk is not being read, or an adopted one not erased
}

// remains is by what the data that a pod has left on a disk is known again; the zero value: it is not known.
type remains struct {
	fingerprint string
	blank       bool // nothing was found
}

// wrote is a [device.Sighting].Written and the appearance that it counts in.
type wrote struct {
	in      string
	sectors uint64
}

// vouch notes the appearance of a disk after our own work that is proven to be the medium of before.
func (e *entry) vouch(appearance string) {
	w := e.atWork()
	w.vouched = appearance
	if w.suspended && appearance != "" && appearance == e.appearance {
		e.leftover, w.suspended = true, false
	}
}

// work returns what is being done to a device, or was, to be read.
func (e *entry) work() work {
	if e.worked == nil {
		return work{}
	}
	return *e.worked
}

// atWork returns it to be written.
func (e *entry) atWork() *work {
	if e.worked == nil {
		e.worked = &work{}
	}
	return e.worked
}

// lingers notes who has a device open still though its pod is gone; empty: nobody.
func (e *entry) lingers(who string) {
	if e.work().lingerer != who {
		e.atWork().lingerer = who
	}
}

// hold notes whether a pod holds a device. Looks ask for it while the loop goes on.
func (l *loop) hold(e *entry, held bool) {
	e.held = held
	if held {
		l.holding.Store(e.device.ID, true)
	} else {
		e.booked = false
		l.holding.Delete(e.device.ID)
	}
}

// Holds tells whether a pod holds a device, as far as is known. It does not wait.
func (i *Inventory) Holds(id string) bool {
	_, held := i.holding.Load(id)
	return held
}

// allocated notes that pods are about to hold these devices. It holds at once; the readers hear of it a little later,
// since the kubelet is waiting for our answer just now. started: it is not given to a pod, but a container of its pod is
// about to be started, perhaps again, or its pod is gone by now.
func (l *loop) allocated(as map[string][]string, now time.Time, started bool) {
	var held []*entry
	for id, names := range as {
		e := l.entries[id]
		if e == nil {
			continue
		}
		e.allocated, e.booked, e.due = now, e.booked && started, e.due || !started
		e.holdAs(names)
		if !e.held {
			l.hold(e, true)
			held = append(held, e)
		}
	}
	if len(held) > 0 {
		time.AfterFunc(publishGap, func() { l.post(func(l *loop) { l.heldSince(held) }) })
	}
}

// holdAs notes IDs by which pods may hold it.
func (e *entry) holdAs(names []string) {
	e.as = slices.Concat(e.as, names)
	slices.Sort(e.as)
	e.as = slices.Compact(e.as)
}

// heldSince has entries judged anew that have been held for a little while.
func (l *loop) heldSince(held []*entry) {
	for _, e := range held {
		if l.entries[e.device.ID] == e {
			l.changed(e)
		}
	}
}

// released notes that no pod holds these devices any more.
func (l *loop) released(ids []string) {
	for _, id := range ids {
		if e := l.entries[id]; e != nil && e.held {
			l.vacate(e)
			l.changed(e)
		}
	}
}

// vacate notes that no pod holds a device any more. What one has done to it shows at the next look.
func (l *loop) vacate(e *entry) {
	if e.held {
		l.hold(e, false)
		l.lookAnew(e)
	}
}

// confirm takes in how the kubelet's pods stand to devices. Only what is free can leave the offer: the kubelet crashes
// over an allocated ID that it does not know (kubernetes v1.35 and v1.36, devicemanager). It gives a device to no pod before
// it has taken it out of its books, so that who is in them after that, and not before, is the pod that we know of.
func (l *loop) confirm(asked time.Time, holdings map[string]Holding) {
	for id, holding := range holdings {
		e := l.entries[id]
		if e == nil {
			continue
		}
		switch {
		case holding == Held, holding == Named:
			e.booked = e.booked || holding == Held && asked.After(e.allocated)
			// The kubelet may have started a container before we were registered again, and told nobody. Of one that it
			// was given and has not announced, it has still to announce the start.
			started := !e.dirty && !e.due && time.Since(e.allocated) > l.Grace
			if started {
				l.started(e, nil, false)
			}
			if started || !e.held {
				l.hold(e, true)
				l.changed(e)
			}
		case holding == Remembered:
			l.resend[e.resource] = true
		case holding == Free && l.mayBeFree(e, asked):
			l.free(e)
		}
	}
}

// mayBeFree tells whether a device that is not in the kubelet's books may count as free: it was in them, or it was allocated
// so long ago that it would be. With one share listed, it is not known of the others. When one was allocated that no
// container was started with, we have forgotten if that was before our own start.
func (l *loop) mayBeFree(e *entry, asked time.Time) bool {
	if e.booked && len(e.as) <= 1 {
		return asked.After(e.allocated)
	}
	return time.Since(e.allocated) > l.Grace && (!e.due || time.Since(l.began) > l.Grace)
}

// free notes that certainly no pod holds a device. Only now it may leave the offer, and first it is cleared by the rule of
// the resource that it leaves. A disk of which nobody answers whether what a pod has left is on it still waits for the
// answer.
func (l *loop) free(e *entry) {
	l.vacate(e)
	// IDs of shares that the resource does not have any more leave the list.
	if slices.ContainsFunc(e.as, func(id string) bool { return id != e.device.ID }) {
		l.resend[e.resource] = true
	}
	e.as = nil
	waits := e.sighting != nil && (l.uncleared(e) || e.sighting.Unread && l.spares(e))
	if e.offered = e.offered && (l.unfit(e) == nil || waits); !e.offered {
		e.leave()
		if e.sighting != nil {
			e.resource = e.sighting.Resource // or it would be offered by the old one once more
			l.look(e.owner)
		}
	}
	l.changed(e)
}
