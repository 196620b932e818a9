// SPDX-License-Identifier: Apache-2.0

package plugin

import "time"

// Metrics has callbacks for the counters of endpoints. They are called from many goroutines and must not block. err is nil
// if the kubelet's call succeeded.
type Metrics struct {
	// Answered is called for each call of Allocate, and for each refused PreStartContainer.
	Answered   func(resource, call string, err error)
	Registered func(resource string, err error) // called after each attempt to register
	Sent       func(sinceEvent time.Duration)   // called after a list was sent because of an event, with the time since that event
}
