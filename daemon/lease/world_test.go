// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"fmt"
	"slices"

	"github.com/metalplug/metalplug/daemon/lease"
)

// content is the content of a disk.
type content uint8

const (
	blank   content = iota
	ofA             // pod A wrote it
	ofB             // pod B wrote it
	foreign         // another machine or the host wrote it
	half            // a tenant wrote it, and an erasure was interrupted
	unknown         // the fingerprint is unknown
)

// tenant is a pod of the kubelet.
type tenant uint8

const (
	noPod tenant = iota
	podA
	podB
)

var uids = [...]string{"", "a", "b"}

func (p tenant) names() []string {
	if p == noPod {
		return nil
	}
	return []string{uids[p]}
}

func (p tenant) data() content { return content(p) }

// compact is a lease as a comparable value. Its texts are replaced by indexes.
type compact struct {
	state, hold, order uint8
	used, residue      bool
	failed             bool
	tenants            uint8 // bit 1 is pod A, bit 2 is pod B
	medium             uint8 // 1 for the disk in the slot, 2 for another, or 0
}

var (
	holds  = []lease.Hold{lease.NoTenant, lease.Due, lease.Started, lease.Interrupted}
	orders = []lease.Order{lease.NoOrder, lease.Reset, lease.Erase}
	media  = []string{"", "this disk", "another"}
	groups = [][]string{nil, {"a"}, {"b"}, {"a", "b"}}
)

func pack(l lease.Lease) compact {
	c := compact{
		state: uint8(slices.Index(lease.States, l.State)), hold: uint8(slices.Index(holds, l.Hold)), order: uint8(slices.Index(orders, l.Order)),
		used: l.Used, residue: l.Residue, failed: l.Failure != "", medium: uint8(slices.Index(media, l.Medium)),
	}
	for _, uid := range l.Tenants {
		c.tenants |= 1 << (slices.Index(uids[:], uid) - 1)
	}
	return c
}

func (c compact) lease() lease.Lease {
	l := lease.Lease{
		State: lease.States[c.state], Hold: holds[c.hold], Order: orders[c.order], Used: c.used, Residue: c.residue,
		Medium: media[c.medium], Tenants: groups[c.tenants],
	}
	if c.failed {
		l.Failure = "it failed"
	}
	return l
}

// restarted returns the lease after a restart of metalplugd, which ends the work in progress. Nothing is proven before the first
// inspection. The model saves this lease, because it visits fewer worlds then.
func (c compact) restarted() compact {
	if l := c.lease(); l.Working() {
		l, _, _ = l.Apply(lease.Event{Name: lease.Refused})
		return pack(l)
	}
	return c
}

// phase is the stage of the work on the device.
type phase uint8

const (
	idle   phase = iota
	begun        // the work is in the lease, but not yet in the state file
	asked        // the helper may act at any time
	erased       // the erasure is in the lease, but not yet in the state file
	done         // the helper has answered
	noted        // the result is in the lease, but not yet in the state file
)

// job is the work of the worker.
type job uint8

const (
	noJob job = iota
	prepares
	cleans
	resetByHand
	eraseByHand
	erasesAdopted
)

// record is the age of the state file.
type record uint8

const (
	current record = iota
	earlier        // the file was written before the last boot
	lost           // the file is damaged or missing
)

// compactWork is a [lease.Work] as a comparable value.
type compactWork struct {
	reset, erase, byHand bool
	content              uint8
}

var contents = []lease.Content{lease.AnyContent, lease.Blank, lease.Unused, lease.OfTenant}

func packWork(w lease.Work) compactWork {
	return compactWork{w.Reset, w.Erase, w.ByHand, uint8(slices.Index(contents, w.Content))}
}

func (c compactWork) unpack() lease.Work {
	return lease.Work{Reset: c.reset, Erase: c.erase, ByHand: c.byHand, Content: contents[c.content]}
}

// this and another distinguish disks, relative to the slot. A replaced disk does not return.
const (
	this    uint8 = 1
	another uint8 = 2
)

// world has everything on which the promises depend.
type world struct {
	mem, file            compact // the lease in memory and in the state file
	seen, seenFile       uint8   // the disk of the last inspection, and the same in the state file
	proof, proofFile     bool    // whether there is evidence about the disk, in memory and in the state file
	stale, staleFile     bool    // the disk in the slot was plugged in after that inspection
	print, printFile     content // the fingerprint of the content that the last tenant left
	adopted              bool    // the state file records that the operator adopted the disk in the slot
	ordered              uint8   // the disk that the operator ordered to be erased
	on                   content // content of the disk in the slot
	record               record  // the age of the state file
	behind               uint8   // number of steps with changes of the lease that the state file lacks
	unseen               bool    // metalplugd has not inspected the device since it started, and does nothing else with it
	down                 bool    // the daemon does not run
	pod                  tenant  // tenant to which the kubelet gave the device
	ran, runs, opens     bool    // a container of the pod was started, is running, and can write to the disk in the slot
	phase                phase
	job                  job
	work                 compactWork // the request to the helper
	starts               tenant      // the pod that the container belongs to, for prepares
	first                bool        // the container is the first of its pod
	given                bool        // the kubelet gave the device to another pod since the preparation began
	subject              uint8       // the disk of the current work
	asks                 content     // the fingerprint that the helper must compare
	moved                bool        // the disk was unplugged after the work began
	other                bool        // an inspection since then found another appearance
	written, writtenFile bool        // the host wrote after the last inspection
	counted, countedFile bool        // the number of writes at the last inspection is known, in memory and in the state file
	lapsed               bool        // the daemon ended during work that may change the disk, or before it saved the number of writes, so it misses writes
	elsewhere            bool        // the pod's disk was used elsewhere while the node was down, and no container was started with it since then
}

// question is an event that was posted to a lease.
type question struct {
	lease           compact
	event           lease.Name
	tenants, medium uint8
	reason          bool
	order           uint8
	proven, residue bool
	given           bool
}

func ask(c compact, e lease.Event) question {
	return question{
		c, e.Name, pack(lease.Lease{Tenants: e.Tenants}).tenants, uint8(max(0, slices.Index(media, e.Medium))), e.Reason != "",
		uint8(slices.Index(orders, e.Order)), e.Proven, e.Residue, e.Given,
	}
}

// answer posts the event to the table again, and returns the result.
func (q question) answer() (string, bool) {
	e := lease.Event{
		Name: q.event, Tenants: groups[q.tenants], Medium: media[q.medium], Order: orders[q.order], Proven: q.proven, Residue: q.residue, Given: q.given,
	}
	if q.reason {
		e.Reason = "it failed"
	}
	l, endsEvidence, err := q.lease.lease().Apply(e)
	return fmt.Sprint(l, endsEvidence), err == nil
}

// tidy resets facts that no longer matter.
func (w world) tidy() world {
	if w.phase == idle {
		w.job, w.work, w.starts, w.first, w.given, w.subject, w.moved, w.other, w.asks = noJob, compactWork{}, noPod, false, false, 0, false, false, unknown
	}
	w.opens = w.opens && w.runs
	if w.down || w.record == current && w.mem.restarted() == w.file {
		w.behind = 0
	}
	w.counted, w.lapsed = w.counted && !w.down, w.lapsed && (w.down || w.on == foreign && (w.mem.residue || w.file.residue))
	known := w.mem
	if w.down {
		known = w.file
	}
	hold := known.lease().Hold
	w.elsewhere = w.elsewhere && w.on == foreign && (w.phase == noted || hold == lease.Interrupted || w.down && w.record == earlier && hold == lease.Started)
	if w.record == lost { // the daemon does not read the file
		w.file, w.proofFile, w.seenFile, w.staleFile, w.printFile, w.writtenFile, w.countedFile = compact{}, false, this, false, unknown, false, false
		w.lapsed = false
	}
	w.given = w.given && w.mem.lease().Hold == lease.Due
	if !w.mem.residue {
		w.print = unknown
	}
	if !w.file.residue {
		w.printFile = unknown
	}
	if w.mem.lease().Order != lease.Erase && w.file.lease().Order != lease.Erase && w.job != eraseByHand {
		w.ordered = 0
	}
	if w.pod == podB || w.pod == noPod && w.starts == podB || w.pod == noPod && w.starts == noPod && w.on == ofB {
		w.rename()
	}
	return w
}

// rename swaps the names of the pods, which are interchangeable.
func (w *world) rename() {
	swap := func(t tenant) tenant { return [...]tenant{noPod, podB, podA}[t] }
	w.pod, w.starts = swap(w.pod), swap(w.starts)
	for _, c := range []*content{&w.on, &w.print, &w.printFile} {
		if *c <= ofB {
			*c = swap(tenant(*c)).data()
		}
	}
	w.mem.tenants, w.file.tenants = w.mem.tenants>>1|w.mem.tenants&1<<1, w.file.tenants>>1|w.file.tenants&1<<1
}

// replace puts a foreign disk into the slot.
func (w *world) replace() {
	for _, of := range []*uint8{&w.seen, &w.seenFile, &w.mem.medium, &w.file.medium, &w.subject, &w.ordered} {
		if *of == this {
			*of = another
		}
	}
	w.adopted, w.opens, w.on = false, false, foreign
}

// isSaved reports whether the state file is up to date.
func (w *world) isSaved() bool {
	stale := w.stale || w.other && w.mem.lease().Working()
	return w.record == current && w.mem.restarted() == w.file && w.countedFile == (w.counted && !w.changing()) && w.proof == w.proofFile && w.seen == w.seenFile && stale == w.staleFile && w.print == w.printFile && w.written == w.writtenFile
}

// save writes the state file.
func (w *world) save() {
	if w.phase == noted && w.on == foreign && (w.elsewhere || w.written && !w.counted) && !w.moved && w.subject == this {
		// The content that its own pod gets again counts as the pod's, and so does a write between the helper's check and the start.
		w.on, w.written = w.starts.data(), false
	}
	w.behind = 0
	w.record, w.file, w.proofFile, w.seenFile, w.staleFile, w.printFile = current, w.mem.restarted(), w.proof, w.seen, w.stale, w.print
	w.writtenFile, w.countedFile = w.written, w.counted && !w.changing()
	if w.mem.lease().Working() { // the file has the appearance from before the work
		w.staleFile = w.stale || w.other
	}
}

// changing reports whether the current work may change the content of the disk.
func (w *world) changing() bool { return w.mem.lease().Working() && w.job != resetByHand }

// notices reports whether the helper notices that the host has written to the disk, and refuses the work.
func (w *world) notices() bool {
	return w.written && w.counted && w.job != resetByHand && w.job != eraseByHand
}

// known reports whether the UID of a pod is in any record.
func (w world) known(p tenant) bool {
	bit := uint8(1) << (p - 1)
	return (w.mem.tenants|w.file.tenants)&bit != 0 || w.starts == p || w.on == p.data()
}
