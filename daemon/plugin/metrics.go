// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"time"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// Metrics receives the calls of endpoints for their counters. Each function may be nil. Many goroutines call it, and it
// must not block. An error is nil where the kubelet's call succeeded.
type Metrics struct {
	// Answered is called for each call of Allocate and for each PreStartContainer that was refused.
	Answered   func(resource, call string, err error)
	Registered func(resource string, err error)                // an attempt to register has ended
	Sent       func(resource string, sinceEvent time.Duration) // a list was sent, that long after the event it is due to
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

// sent counts a list that was sent. The first one of a stream is due to the kubelet, and some are due to no event.
func (m Metrics) sent(resource string, offer *inventory.Offer, first bool) {
	if m.Sent != nil && !first && !offer.Cause.IsZero() {
		m.Sent(resource, time.Since(offer.Cause))
	}
}
