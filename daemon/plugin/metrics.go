// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"time"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// Metrics has callbacks for the counters of endpoints. Each function may be nil. They are called from many goroutines
// and must not block. err is nil if the kubelet's call succeeded.
type Metrics struct {
	// Answered is called for each call of Allocate, and for each refused PreStartContainer.
	Answered   func(resource, call string, err error)
	Registered func(resource string, err error)                // called after each attempt to register
	Sent       func(resource string, sinceEvent time.Duration) // called after a list was sent, with the time since the event that caused it
}

func (m Metrics) answered(resource, call string, err error) {
	if m.Answered != nil {
		m.Answered(resource, call, err)
	}
}

func (m Metrics) registered(resource string, err error) {
	if m.Registered != nil {
		m.Registered(resource, err)
	}
}

// sent records that a list was sent. It does not report lists without an event, such as the first list of a stream.
func (m Metrics) sent(resource string, offer *inventory.Offer, first bool) {
	if m.Sent != nil && !first && !offer.Cause.IsZero() {
		m.Sent(resource, time.Since(offer.Cause))
	}
}
