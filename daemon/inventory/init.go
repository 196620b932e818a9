// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

// Initialised notes that what its rule wants done to a device before it is offered was done, or why it could not be. It
// holds for as long as the hardware is there, in this boot. It does not wait.
func (i *Inventory) Initialised(id, init string, err error) {
	i.post(func(l *loop) {
		e := l.entries[id]
		if e == nil {
			return
		}
		w := e.atWork()
		e.initialised, w.uninit = init, ""
		if err != nil {
			e.initialised, w.uninit = "", err.Error()
		}
		w.settling = time.Now().Add(returnLimit)
		l.unsaved = true
		l.saveLater()
		l.changed(e)
	})
}

// uninitialised returns what has to be done to a device before it is offered; empty: nothing, or it was done already.
func (l *loop) uninitialised(e *entry) string {
	rule := l.rule(e)
	if !e.offered || rule == nil || e.initialised == rule.Init || l.unfit(e) != nil {
		return ""
	}
	return rule.Init
}

// arrives notes which appearance of the hardware was seen, and tells whether it is another one, which is not initialised.
func (e *entry) arrives(s *device.Sighting) (another bool) {
	if another = s.Instance != e.instance; another {
		e.departs()
	}
	e.instance = s.Instance
	return another
}

// departs notes that hardware has gone, or that other hardware is in its place: it is initialised no more. That our own
// reset makes it drop off the bus, or the firmware that it was just given, does not count.
func (e *entry) departs() {
	now, w := time.Now(), e.work()
	if w.under > 0 || now.Before(w.settling) || w.own && (e.outdated() || now.Before(w.back)) {
		return
	}
	if e.initialised = ""; w.uninit != "" {
		e.atWork().uninit = ""
	}
}
