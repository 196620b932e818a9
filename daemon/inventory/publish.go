// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/verdict"
)

// LevelNotice is the level that the journal calls "notice". LevelNotice is for normal but significant events. Package systemd
// defines the same level.
const LevelNotice = slog.Level(2)

// publishing is the part of the loop that creates snapshots.
type publishing struct {
	*leases
	unmatched    bool               // devices may form new bundles when no inspection is pending
	bundles      map[string]*Status // published bundles; keys are IDs
	cause        time.Time          // arrival of the first event since the last snapshot
	publishedAt  time.Time
	changes      int             // number of devices that changed in the last snapshot
	timerSet     bool            // a timer wakes the loop for the next snapshot
	rulesApplied []chan struct{} // closed when all devices have been inspected with the newest rules
}

// publish creates a snapshot after a change and wakes the readers. publish first waits for the delay that
// [publishing.publishDelay] returns, so that a burst of events causes only a few messages to the kubelet.
func (l *loop) publish(now time.Time) {
	if !l.isReady || len(l.dirty) == 0 && len(l.resend) == 0 && !l.stale && (!l.unmatched || l.inspector.Busy()) {
		if !l.inspector.Busy() {
			l.cause = time.Time{}
		}
		return
	}
	if wait := l.publishDelay() - now.Sub(l.publishedAt); wait > 0 {
		if !l.timerSet {
			l.timerSet = true
			l.postLater(wait, func(l *loop) { l.timerSet = false })
		}
		return
	}
	l.changes = len(l.dirty)
	old := l.published.Swap(&publication{snapshot: l.next(now), changed: make(chan struct{})})
	close(old.changed)
	l.publishedAt, l.cause = now, time.Time{}
}

// publishDelay returns the minimum time between the last snapshot and the next.
func (p *publishing) publishDelay() time.Duration {
	switch {
	case p.inspector.Busy():
		return minPublishInterval
	case p.changes > burstSize:
		return burstInterval
	}
	return 0
}

// notifyRuled closes the channels that [Inventory.SetRules] has returned, once all devices have been inspected with the new
// rules.
func (p *publishing) notifyRuled() {
	if len(p.rulesApplied) == 0 || p.inspector.Enumerating() || p.inspector.Busy() || len(p.dirty)+len(p.resend) > 0 || p.stale || p.unmatched {
		return
	}
	for _, done := range p.rulesApplied {
		close(done)
	}
	p.rulesApplied = nil
}

// next creates a snapshot from the last one and the entries that have changed.
func (l *loop) next(now time.Time) *Snapshot {
	last := l.published.Load().snapshot
	next := &Snapshot{Version: last.Version + 1, Offers: maps.Clone(last.Offers), Others: last.Others}
	bundler{l}.assemble()
	changed := l.judgeDirty(now)
	bundler{l}.publishBundles(changed, now)
	for resource := range l.resend {
		if _, ok := changed[resource]; !ok {
			changed[resource] = nil // no device has changed, but the endpoint sends the list again
		}
	}
	for resource, devices := range changed {
		offer := last.Offer(resource).patch(devices)
		offer.Cause = l.cause
		if l.resend[resource] {
			offer.Listed++
		}
		next.Offers[resource] = offer
	}
	clear(l.resend)
	if l.stale {
		next.Others = l.collectOthers()
		l.stale = false
	}
	return next
}

// judgeDirty computes the status of the entries that have changed.
func (p *publishing) judgeDirty(now time.Time) updates {
	changed := make(updates)
	byID := func(a, b *entry) int { return strings.Compare(a.device.ID, b.device.ID) } // for a stable order in the log
	for _, e := range slices.SortedFunc(maps.Keys(p.dirty), byID) {
		old := e.status
		e.status = p.judge(e, now)
		if reflect.DeepEqual(old, e.status) {
			e.status = old
			continue
		}
		p.report(old, e.status)
		p.saveLater()
		if old != nil && old.Resource != "" && old.Resource != e.status.Resource {
			changed.set(old.Resource, old.Device.ID, nil)
		}
		if e.status.Resource != "" {
			changed.set(e.status.Resource, e.status.Device.ID, e.status)
		}
		p.stale = p.stale || e.status.Resource == "" || old != nil && old.Resource == ""
		if e.sighting == nil && !e.offered && !e.lease.Used && !e.Unfinished {
			delete(p.entries, e.device.ID)
		}
	}
	p.dirty = make(map[*entry]bool) // the built-in clear would keep the memory of the largest burst
	return changed
}

// collectOthers returns all devices that are not offered. The result includes absent devices that are cordoned.
func (l *loop) collectOthers() []*Status {
	var all []*Status
	for _, f := range l.found {
		all = append(all, f.others...)
	}
	for _, e := range l.entries {
		if e.status != nil && e.status.Resource == "" && (e.status.Present || e.status.Cordon != nil) {
			all = append(all, e.status)
		}
	}
	for id, c := range l.cordons {
		if l.entries[id] == nil {
			reason := verdict.Verdict{Reason: "cordoned: " + c.Reason + "; gone, or no resource matches it", Since: c.Since}
			all = append(all, &Status{Device: &device.Device{ID: id, NUMANode: -1}, Cordon: c, Verdict: reason})
		}
	}
	slices.SortFunc(all, func(a, b *Status) int {
		return cmp.Or(strings.Compare(a.Device.SysPath, b.Device.SysPath), strings.Compare(a.Device.ID, b.Device.ID))
	})
	return all
}

// report logs how a device's status has changed.
func (p *publishing) report(old, s *Status) {
	log := p.Log.With("device", s.Device.ID, "class", s.Device.ClassName(), "resource", s.Resource)
	defer reportWarning(log, old, s)
	switch {
	case s.Resource == "" && (old == nil || old.Resource == "" && old.StableReason() != s.StableReason()):
		log.Info("device not offered", "reason", s.Reason)
	case s.Resource == "" && old != nil && old.Resource != "":
		log.Info("device withdrawn", "reason", s.Reason)
	case s.Resource == "":
	case old == nil || old.Resource == "":
		if !s.Healthy {
			log = log.With("reason", s.Reason)
		}
		log.Info("device added", "syspath", s.Device.SysPath)
	case old.Present && !s.Present:
		log.Log(context.Background(), LevelNotice, "device gone", "syspath", s.Device.SysPath)
	case !old.Healthy && s.Healthy:
		log.Log(context.Background(), LevelNotice, "device healthy")
	case old.StableReason() != s.StableReason():
		log.Log(context.Background(), LevelNotice, "device unhealthy", "reason", s.Reason)
	}
}

// reportWarning logs a new warning about a usable device.
func reportWarning(log *slog.Logger, old, s *Status) {
	before := cmp.Or(old, new(Status)).Warning
	switch {
	case s.Warning == before:
	case s.Warning != "":
		log.Warn("device warning", "reason", s.Warning)
	case s.Present:
		log.Info("device warning over", "reason", before)
	}
}
