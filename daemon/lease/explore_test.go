// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/lease"
)

// The exploration visits every state of a small model world that events, hardware and crashes can lead to, and checks
// the promises of a lease in each. It uses the product's table, and the product's choice of work. The model has a
// kubelet with two pods, two disks that can replace each other, a helper, and a state file.

// explorer visits worlds.
type explorer struct {
	rule      lease.Rule
	index     map[world]int32
	queue     []world
	from      []int32   // the first predecessor of each world
	next      [][]int32 // the successors of each world through the daemon, pods and the operator
	edges     int
	current   world
	fair      bool // the current step needs neither a crash nor a hardware change
	asked     map[question]bool
	calm      bool  // true means without crashes, replaced disks, failures and the operator
	maxBehind uint8 // the number of steps with changes of the lease that the state file may lack
	rash      phase // the worker does not wait for the state file in this phase, although the product does
	broken    string
}

func (x *explorer) fail(format string, a ...any) {
	if x.broken == "" {
		x.broken = fmt.Sprintf(format, a...)
	}
}

// to records that w can follow the current world.
func (x *explorer) to(w world) {
	x.edges++
	if w.mem != x.current.mem {
		w.behind++
	}
	if w = w.tidy(); w.behind > x.maxBehind { // the file is written before this step
		x.edges--
		return
	}
	x.check(w)
	n, known := x.index[w]
	if !known {
		n = int32(len(x.queue))
		x.index[w] = n
		x.queue = append(x.queue, w)
		x.next = append(x.next, nil)
		x.from = append(x.from, x.index[x.current])
	}
	if from := x.index[x.current]; x.fair && from != n {
		x.next[from] = append(x.next[from], n)
	}
}

// apply posts an event to the lease. If the state does not have the event, the table is wrong.
func (x *explorer) apply(w *world, e lease.Event) {
	e.Proven = x.isOfferable(*w)
	x.applyAs(w, e)
}

// applyAs applies an event whose facts are complete.
func (x *explorer) applyAs(w *world, e lease.Event) {
	x.asked[ask(w.mem, e)] = true
	l, endsEvidence, err := w.mem.lease().Apply(e)
	if err != nil {
		x.fail("%v", err)
		return
	}
	w.mem = pack(l)
	if endsEvidence {
		w.proof = false
	}
}

// isOfferable reports whether the device may be offered without a tenant, as the inventory reports it to the lease.
func (x *explorer) isOfferable(w world) bool {
	l := w.mem.lease()
	return !x.rule.Disk || w.proof || l.Residue && x.rule.Scrubs && x.rule.AtStart
}

// check checks the conditions that must be true in every world.
func (x *explorer) check(w world) {
	l := w.mem.lease()
	if w.down {
		return
	}
	switch {
	case w.pod != noPod && !l.Held():
		x.fail("the kubelet holds the device and the lease does not: its ID could leave the list")
	case w.runs && x.rule.StartWaits(x.atRelease()) && !l.Used:
		x.fail("a container runs on a device that counts as not used")
	case w.runs && x.rule.StartWaits(x.atRelease()) && w.record != lost && !w.file.lease().Used:
		x.fail("a container runs, and the state file does not say that the device was used")
	case l.State == lease.Free && x.rule.Disk && !w.stale && !w.written && !l.Residue && w.on != blank:
		x.fail("a disk with content %d counts as free", w.on)
	case l.State == lease.Failed && l.Failure == "", l.State == lease.Allocated && !l.Held(), l.State == lease.InUse && !(l.Held() && l.Used),
		l.State == lease.Released && (l.Held() || !l.Used), l.Order != "" && !l.Working() && l.State != lease.Failed:
		x.fail("a lease that cannot be")
	case l.State == lease.Unproven && !w.stale && w.seen == this && x.isOfferable(w):
		x.fail("a disk with evidence counts as unproven")
	case l.State == lease.Free && l.Failure != "":
		x.fail("a device whose work failed counts as free")
	case (l.State == lease.Free || l.State == lease.Unproven || l.State == lease.Released) && l.Held():
		x.fail("a held device counts as %s", l.State)
	case (l.State == lease.Free || l.State == lease.Unproven) && l.Used:
		x.fail("a used device counts as %s", l.State)
	case (w.phase == idle || w.phase == noted) == l.Working():
		x.fail("the lease says %s and the worker is in phase %d", l.State, w.phase)
	}
}

// erase simulates an erasure by the helper.
func (x *explorer) erase(w *world, byHand bool) {
	c := w.on
	switch {
	case byHand && w.job == erasesAdopted:
		if !w.adopted {
			x.fail("a disk is erased that no operator has adopted")
		}
	case byHand && w.ordered != this:
		x.fail("an order to erase one disk erases another")
	case !byHand && c == foreign:
		x.fail("content is erased that is no tenant's")
	case w.job == prepares && w.ran && c == w.starts.data() && w.pod == w.starts:
		x.fail("a repeated start erases the data of its own pod")
	}
	w.on = blank
	w.writtenFile = w.writtenFile || w.countedFile // the number of writes in the file is now too low
}

// halfErase simulates an interrupted erasure.
func (x *explorer) halfErase(w *world, byHand bool) {
	before := w.on
	if x.erase(w, byHand); before == ofA || before == ofB || before == half {
		w.on = half
	} else {
		w.on = before
	}
}

// visit takes all possible steps from a world.
func (x *explorer) visit(w world) {
	x.current = w
	x.fair = false
	x.writeByHost(w)
	if !x.calm {
		x.hardware(w)
		x.crash(w)
	}
	x.fair = true
	if !w.down {
		x.write(w)
	}
	if x.kubelet(w); w.down {
		return
	}
	if x.inspect(w); w.unseen {
		return
	}
	if x.continueWork(w); !x.calm {
		x.operator(w)
	}
}

// write completes a write of the state file. metalplugd writes the file in the background, so a crash loses all changes since
// the last write. Only the worker may wait for a write before its next step.
func (x *explorer) write(w world) {
	n := w
	n.save()
	switch {
	case w.phase == begun:
		n.phase = asked
	case w.phase == erased:
		n.phase = done
	case w.phase == noted && x.startWaits():
		x.endPreparation(&n)
	case w.isSaved():
		return
	}
	x.to(n)
}

// atRelease reports whether the device is reset or erased after its tenant has ended.
func (x *explorer) atRelease() bool { return !x.rule.AtStart }

// startWaits reports whether the worker waits for the state file before a container starts.
func (x *explorer) startWaits() bool { return x.rash != noted && x.rule.StartWaits(x.atRelease()) }

// writeByHost makes a process of the host write to a disk that no container has. The kernel counts the write. At any time, a
// process may write to a disk with a known number of writes. While metalplugd is idle, a process may also write to a disk without
// known data of a tenant.
func (x *explorer) writeByHost(w world) {
	l, counted := w.mem.lease(), w.counted
	if w.down {
		l, counted = w.file.lease(), w.countedFile || w.lapsed
	}
	plain := !w.down && w.phase == idle && !l.Used && !l.Residue && l.Failure == ""
	if !x.rule.Disk || w.runs || l.Held() && l.Hold != lease.Due || !plain && (x.calm || !counted) {
		return
	}
	w.on, w.written, w.writtenFile = foreign, true, true
	x.to(w)
}

// hardware adds, removes and changes disks.
func (x *explorer) hardware(w world) {
	if !x.rule.Disk {
		return
	}
	n := w // the disk is plugged in again
	n.stale, n.staleFile, n.moved, n.opens = true, true, w.phase != idle, false
	x.to(n)
	n.on = foreign // the disk was in another machine in between
	x.to(n)
	n.replace()
	x.to(n)
}

// crash ends the daemon with its helper, and starts it again.
func (x *explorer) crash(w world) {
	if !w.down {
		n := w
		cleared := w.phase == idle && w.proof && w.file.residue && !w.mem.residue // metalplugd has reported the erasure
		n.lapsed, n.writtenFile = w.lapsed || (w.counted || w.phase == noted) && !w.countedFile && !cleared, w.writtenFile || w.lapsed
		n.down, n.phase = true, idle
		n.mem, n.proof, n.print = compact{}, false, unknown
		x.to(n)
		if work := w.work.unpack(); w.phase == asked && work.Erase && !x.refuses(w, work) && !w.stale && !w.moved && w.subject == this {
			byHand, at := w.work.unpack().ByHand, w
			x.erase(&at, byHand)
			n.on, n.writtenFile = at.on, at.writtenFile || w.lapsed
			x.to(n)
			at = w
			x.halfErase(&at, byHand)
			n.on, n.writtenFile = at.on, at.writtenFile || w.lapsed
			x.to(n)
		}
		return
	}
	x.fair = true
	if w.record == lost {
		x.loseState(w)
		return
	}
	n := w
	// metalplugd does not notice this write, unless it compares the content.
	if n.lapsed = w.lapsed && w.writtenFile && !w.elsewhere && !w.staleFile; n.lapsed && w.file.residue && w.on == foreign && w.printFile == unknown {
		n.on, n.writtenFile = half, false
	}
	x.load(&n)
	x.to(n)
	if x.fair = false; x.rule.Disk {
		w.lapsed = false
		x.boot(w, w.on)
		x.boot(w, foreign)
	}
	x.fair = true
	x.loseState(w)
}

// load starts the daemon with the state file.
func (x *explorer) load(w *world) {
	w.down, w.unseen, w.mem, w.proof, w.seen, w.stale, w.print = false, true, w.file, w.proofFile, w.seenFile, w.staleFile, w.printFile
	w.written, w.counted = w.writtenFile, w.countedFile && w.record == current
	if w.pod != noPod && !w.mem.lease().Held() { // the daemon ended before it had saved the Allocate
		x.apply(w, lease.Event{Name: lease.Allocate})
	}
	if w.record == earlier {
		x.apply(w, lease.Event{Name: lease.Reboot})
		if l := w.mem.lease(); l.Hold != lease.Interrupted && (w.print == unknown || l.Held()) {
			x.apply(w, lease.Event{Name: lease.Replaced})
		}
	}
	x.settle(w)
}

// boot starts the daemon after a reboot. The disk then has the same or other content.
func (x *explorer) boot(w world, on content) {
	w.record, w.runs, w.opens = earlier, false, false
	w.on, w.writtenFile = on, w.writtenFile || on != w.on
	w.elsewhere = w.elsewhere || on == foreign
	x.load(&w)
	x.to(w)
}

// loseState starts the daemon without its state. Until the daemon has saved the new state, it ignores the damaged file.
func (x *explorer) loseState(w world) {
	w.record, w.down, w.unseen, w.proof, w.adopted, w.seen, w.stale = lost, false, true, false, false, this, false
	w.print, w.written, w.counted = unknown, false, false
	w.mem = pack(lease.Lease{State: lease.Unproven})
	x.settle(&w)
	if w.pod != noPod {
		x.apply(&w, lease.Event{Name: lease.Listed, Tenants: w.pod.names()})
	}
	x.to(w)
}

// kubelet adds and removes pods, and lets them write.
func (x *explorer) kubelet(w world) {
	n := w
	if w.runs {
		if w.opens {
			n.on = w.pod.data()
			x.to(n)
		}
		n = w
		n.runs = false
		x.to(n)
	}
	if w.pod != noPod {
		n = w
		n.pod, n.runs, n.ran = noPod, false, false
		x.to(n)
	}
	if w.down || w.unseen {
		return
	}
	if w.pod == noPod {
		if w.mem.lease().Held() { // the daemon notices
			n = w
			x.apply(&n, lease.Event{Name: lease.Gone})
			x.to(n)
		}
		for _, pod := range []tenant{podA, podB} {
			if w.known(pod) { // a pod never returns
				continue
			}
			n = w
			if n.mem.lease().Held() { // the kubelet allocates only devices that no pod holds
				x.apply(&n, lease.Event{Name: lease.Gone})
			}
			x.apply(&n, lease.Event{Name: lease.Allocate})
			n.pod, n.given = pod, true
			x.to(n)
		}
		return
	}
	if w.runs || w.phase != idle {
		return
	}
	x.startOf(w, w.pod.names())
	if l := w.mem.lease(); !x.calm {
		x.startOf(w, nil)
		x.startOf(w, []string{"z"}) // the checkpoint names a pod of long ago
		if l.Hold == lease.Due {    // the checkpoint still names earlier pods
			x.startOf(w, l.Tenants)
		}
	}
}

// startOf starts a container of the pod while the checkpoint has the given pods.
func (x *explorer) startOf(w world, names []string) {
	l := w.mem.lease()
	if l.CheckpointOutdated(names) {
		return // the worker refuses the start, and the kubelet retries
	}
	w.job, w.starts, w.first, w.subject, w.given = prepares, w.pod, l.First(names), w.seen, false
	x.startWork(&w, lease.Event{Name: lease.Prepare})
}

// inspect makes the inventory inspect the hardware.
func (x *explorer) inspect(w world) {
	l := w.mem.lease()
	if w.unseen = false; l.Held() {
		x.to(w)
	}
	if w.stale {
		n := w
		n.proof = n.proof && w.seen == this && w.on == blank
		n.stale, n.seen, n.written, n.counted = false, this, false, false
		if n.other = l.Working(); !n.other { // during work, the worker posts the event when it has finished
			x.apply(&n, lease.Event{Name: lease.Replaced})
		}
		x.settle(&n)
		x.to(n)
	}
	forgiven := w.phase == noted && w.written && !w.counted                          // the count begins after the start
	if !w.stale && !forgiven && !l.Working() && (!l.Held() || l.Hold == lease.Due) { // the writes are counted, and the content is read or compared
		n := w
		n.written, n.counted = false, true
		switch {
		case !l.Residue:
		case w.written && w.counted:
			x.changeContent(&n)
		case l.Held(): // the content is not read
		case w.print == unknown && !l.Used:
			n.print = w.on
		case w.print != unknown && w.print != w.on:
			x.changeContent(&n)
		}
		n.proof = n.proof && w.on == blank
		x.settle(&n)
		x.to(n)
		if n.mem.lease().State == lease.Unproven && w.on == blank {
			n.proof = true
			x.settle(&n)
			x.to(n)
		}
	}
}

// changeContent records that the content differs from what the tenant left.
func (x *explorer) changeContent(w *world) {
	if w.on == half {
		x.fail("half an erasure counts as the content of another")
	}
	x.apply(w, lease.Event{Name: lease.Changed})
}

// settle posts to the lease whether the evidence is valid.
func (x *explorer) settle(w *world) {
	switch l := w.mem.lease(); {
	case l.State == lease.Free && !x.isOfferable(*w):
		x.apply(w, lease.Event{Name: lease.Doubted})
	case l.State == lease.Unproven && x.isOfferable(*w):
		x.apply(w, lease.Event{Name: lease.Proven, Residue: l.Residue && !w.proof})
	}
}

// workFor returns the request to the helper.
func (x *explorer) workFor(w world) lease.Work {
	l := w.mem.lease()
	switch w.job {
	case prepares:
		return l.Preparation(x.rule, w.first, l.Medium != "" && l.Medium == media[w.subject])
	case cleans:
		if !x.atRelease() && l.Failure == "" {
			return lease.Work{}
		}
		return l.CleanUp(x.rule)
	case eraseByHand, erasesAdopted:
		return lease.Work{Erase: true, ByHand: true}
	}
	return lease.Work{Reset: true, ByHand: true}
}

// continueWork makes the worker continue.
func (x *explorer) continueWork(w world) {
	l := w.mem.lease()
	n := w
	switch w.phase {
	case idle:
		if !l.Held() && (l.State == lease.Released || l.State == lease.Failed) {
			x.begin(w, cleans)
		}
		if !l.Held() && l.State == lease.Unproven && w.adopted && w.seen == this && !w.stale {
			x.begin(w, erasesAdopted)
		}
	case asked:
		x.runHelper(w)
	case done:
		x.endWork(w)
	case noted:
		if !x.startWaits() {
			x.endPreparation(&n)
			x.to(n)
		}
	}
}

// endPreparation starts the container that the device was prepared for, unless its pod has ended.
func (x *explorer) endPreparation(w *world) {
	w.phase = idle
	if w.pod != w.starts {
		return
	}
	w.runs, w.ran = true, true
	if !w.moved && w.subject == this {
		w.opens = true
		x.startContainer(*w)
	}
}

// startContainer checks the conditions for a container that gets a disk.
func (x *explorer) startContainer(w world) {
	if c := w.on; x.rule.Disk && c != blank && c != w.pod.data() && (c != foreign || w.first) {
		x.fail("pod %s gets a disk with content %d (first start: %t)", uids[w.pod], c, w.first)
	}
}

func (x *explorer) begin(w world, j job) {
	w.job, w.subject = j, w.seen
	x.startWork(&w, lease.Event{Name: lease.Clear})
}

// startWork starts work. Before an erasure it discards the fingerprint of the content.
func (x *explorer) startWork(w *world, e lease.Event) {
	w.work, w.asks, w.moved = packWork(x.workFor(*w)), unknown, w.stale
	if work := w.work.unpack(); work.Erase {
		w.asks, w.print = w.print, unknown
	}
	if work := w.work.unpack(); work.Erase && !work.ByHand && !w.counted {
		return // the worker waits until an inspection has counted the writes
	}
	w.phase = asked
	if x.rash != begun && w.work.unpack().Waits() {
		w.phase = begun
	}
	x.apply(w, e)
	x.to(*w)
}

// finish posts the result of the work, and the replacement of the disk in the meantime.
func (x *explorer) finish(w *world, e lease.Event) {
	w.phase = idle
	x.apply(w, e)
	x.notice(w)
}

func (x *explorer) notice(w *world) {
	if w.other {
		x.apply(w, lease.Event{Name: lease.Replaced})
	}
	x.settle(w)
}

// runHelper makes the helper act.
func (x *explorer) runHelper(w world) {
	n, work := w, w.work.unpack() // the device is busy, and its content has not changed
	if work.Erase {
		n.print = w.asks
	}
	x.finish(&n, lease.Event{Name: lease.Refused})
	x.to(n)
	if n = w; !x.calm { // the hardware fails, or the disk is not the expected one
		x.failWork(n)
	}
	if x.rule.Disk && (w.moved || w.stale || w.subject != this) {
		return
	}
	n = w
	switch {
	case work.Erase && x.refuses(w, work):
		x.changeContent(&n)
		n.adopted = n.adopted && w.job != erasesAdopted
		x.finish(&n, lease.Event{Name: lease.Refused})
		x.to(n)
		return
	case work.Erase:
		wrong := w
		x.halfErase(&wrong, work.ByHand)
		if !x.calm {
			x.failWork(wrong)
		}
		x.erase(&n, work.ByHand)
		n.proof, n.adopted, n.written, n.counted = true, false, false, true
		x.apply(&n, lease.Event{Name: lease.Erased})
	case work.Content == lease.Unused && !w.proof: // the worker does not ask the helper
		x.finish(&n, lease.Event{Name: lease.Refused})
		x.to(n)
		return
	case work.Content == lease.Blank && w.on != blank, work.Content == lease.Unused && w.written: // the helper may miss data
		x.apply(&n, lease.Event{Name: lease.Changed})
		x.finish(&n, lease.Event{Name: lease.Refused})
		x.to(n)
		return
	}
	if n.phase = done; w.job != prepares && x.rash != erased && work.Waits() {
		n.phase = erased
	}
	x.to(n)
}

// refuses reports whether the helper refuses to erase the disk. The helper compares the content with what the tenant left, and the
// number of writes with the number before the work.
func (x *explorer) refuses(w world, work lease.Work) bool {
	return !work.ByHand && w.asks != unknown && w.asks != w.on || w.notices()
}

// failWork records that the work has failed. After a failed erasure, metalplugd counts only later writes.
func (x *explorer) failWork(w world) {
	if w.work.unpack().Erase && w.mem.residue {
		if (w.written || w.lapsed) && w.on == foreign {
			w.on = half
		}
		w.written, w.counted = false, true
	}
	x.finish(&w, lease.Event{Name: lease.Fail, Reason: "it failed", Order: w.order()})
	x.to(w)
}

// order returns the order that is recorded with a failure of the work.
func (w world) order() lease.Order {
	switch w.job {
	case resetByHand:
		return lease.Reset
	case eraseByHand:
		return lease.Erase
	case cleans:
		return w.mem.lease().Order
	}
	return lease.NoOrder
}

// endWork records the result of successful work.
func (x *explorer) endWork(w world) {
	n := w
	e := lease.Event{Name: lease.Cleared}
	switch l := w.mem.lease(); {
	case w.job == prepares:
		same := !x.rule.Disk || !w.moved
		residue := x.rule.Disk && same && (w.first || l.Residue)
		e = lease.Event{Name: lease.Start, Medium: media[w.subject], Residue: residue, Given: w.given, Tenants: w.starts.names()}
	case w.job == resetByHand && (l.Used || l.Order == lease.Erase):
		e.Name = lease.Mended
	}
	if w.job != prepares {
		x.finish(&n, e)
		x.to(n)
		return
	}
	n.phase, n.counted = noted, false
	x.apply(&n, e)
	x.notice(&n)
	x.to(n)
}

// operator simulates actions of the operator.
func (x *explorer) operator(w world) {
	l := w.mem.lease()
	if w.phase != idle || l.Held() {
		return
	}
	x.begin(w, resetByHand)
	if !x.rule.Disk || w.stale {
		return
	}
	n := w
	n.ordered = w.seen
	x.begin(n, eraseByHand)
	if l.State == lease.Unproven {
		n = w
		x.apply(&n, lease.Event{Name: lease.Adopted})
		n.adopted, n.proof = true, false
		n.save()
		x.to(n)
	}
}

var maxBehind = flag.Uint("max-behind", 1, "number of steps with changes of the lease that the state file may lack; with 2, the test takes twice as long")

// rules are the explored resources.
var rules = []lease.Rule{
	{AtStart: true},
	{},
	{Disk: true},
	{Disk: true, Scrubs: true, AtStart: true},
	{Disk: true, Scrubs: true},
}

// explore visits all worlds of a rule and returns the explorer with the first broken promise.
func explore(rule lease.Rule, calm bool) *explorer { return exploreRash(rule, calm, *maxBehind, idle) }

// exploreRash is like explore, but the worker does not wait in a phase. The parameter maxBehind is that of the explorer.
func exploreRash(rule lease.Rule, calm bool, maxBehind uint, rash phase) (x *explorer) {
	x = &explorer{rule: rule, calm: calm, maxBehind: uint8(maxBehind), rash: rash, index: make(map[world]int32), asked: make(map[question]bool)}
	w := world{mem: pack(lease.Lease{State: lease.Unproven}), seen: this, seenFile: this, print: unknown, printFile: unknown}
	if !rule.Disk {
		w.mem = pack(lease.Lease{State: lease.Free})
	}
	w.file = w.mem
	x.current = w
	x.to(w)
	for n := 0; n < len(x.queue) && x.broken == ""; n++ {
		x.visit(x.queue[n])
	}
	if x.broken == "" {
		x.checkWaysOut()
	}
	return x
}

// checkWaysOut checks that every world can lead to a free device, or to a decision of the operator, by steps of the daemon,
// pods and the operator, without crashes or hardware changes.
func (x *explorer) checkWaysOut() {
	back := make([][]int32, len(x.queue))
	for from, to := range x.next {
		for _, n := range to {
			back[n] = append(back[n], int32(from))
		}
	}
	reached := make([]bool, len(x.queue))
	var todo []int32
	for n, w := range x.queue {
		state := w.mem.lease().State
		waits := x.rule.Disk && (!x.rule.Scrubs || w.on == foreign) && state == lease.Unproven // only the operator can continue
		if !w.down && w.phase == idle && (state == lease.Free || waits) {
			reached[n] = true
			todo = append(todo, int32(n))
		}
	}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, from := range back[n] {
			if !reached[from] {
				reached[from] = true
				todo = append(todo, from)
			}
		}
	}
	for n, w := range x.queue {
		if !reached[n] {
			x.fail("no way to a free device")
			x.current = w
			return
		}
	}
}

// path returns the worlds that led to the broken promise.
func (x *explorer) path() string {
	var lines []string
	for n := x.index[x.current]; ; n = x.from[n] {
		lines = append(lines, fmt.Sprintf("%+v %+v", x.queue[n].mem.lease(), x.queue[n]))
		if n == x.from[n] {
			break
		}
	}
	slices.Reverse(lines)
	return strings.Join(lines, "\n")
}

// TestExplore visits all reachable states and checks the promises in each.
func TestExplore(t *testing.T) {
	for _, rule := range rules {
		t.Run(fmt.Sprintf("%+v", rule), func(t *testing.T) {
			t.Parallel()
			for _, calm := range []bool{true, false} {
				x := explore(rule, calm)
				if x.broken != "" {
					t.Errorf("calm %t: %s\n%s", calm, x.broken, x.path())
				}
				t.Logf("calm %t: %d worlds, %d transitions", calm, len(x.queue), x.edges)
			}
		})
	}
}

// TestWaits checks that each wait for the state file is necessary. Without the wait, a crash breaks a promise.
func TestWaits(t *testing.T) {
	for _, c := range []struct {
		rash      phase
		rule      lease.Rule
		maxBehind uint
	}{
		{begun, lease.Rule{Disk: true, Scrubs: true}, 1},
		{erased, lease.Rule{Disk: true, Scrubs: true}, 2}, // the end of the clean-up is a second change
		{noted, lease.Rule{}, 1},
	} {
		t.Run(fmt.Sprintf("phase %d", c.rash), func(t *testing.T) {
			t.Parallel()
			if exploreRash(c.rule, false, c.maxBehind, c.rash).broken == "" {
				t.Error("no promise is broken without the wait")
			}
		})
	}
}

// A device is prepared for each claim, and again after a boot.
func TestClaims(t *testing.T) {
	all := lease.Claims{{ClaimRef: api.ClaimRef{UID: "c1"}}, {ClaimRef: api.ClaimRef{UID: "c2"}}}
	one := all.Started([]string{lease.OfClaim("c1")})
	both := one.Started([]string{lease.OfClaim("c2"), lease.OfClaim("c3")})
	if all.Ready("c1") || !one.Ready("c1") || one.Ready("c2") || !both.Ready("c1") || !both.Ready("c2") || both.Ready("c3") {
		t.Errorf("%v, then %v, then %v", all, one, both)
	}
	if booted := both.Rebooted(); booted.Ready("c1") || booted.Ready("c2") || !booted.Has("c2") || !both.Ready("c2") {
		t.Errorf("after a boot: %v", booted)
	}
	if left := both.Without("c1"); left.Has("c1") || !left.Ready("c2") || len(both) != 2 {
		t.Errorf("without c1: %v", left)
	}
}
