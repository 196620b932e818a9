// SPDX-License-Identifier: Apache-2.0

package plugin

import "time"

// Metrics contains callbacks that update the counters of endpoints. They are called from many goroutines and must not block.
// The argument err is nil if the call succeeded.
type Metrics struct {
	// Answered is called for each Allocate call, and for each PreStartContainer call that is refused.
	Answered   func(resource, call string, err error)
	Registered func(resource string, err error) // called after each attempt to register
	// Sent is called after a list was sent because of an event, with the time since that event.
	Sent func(sinceEvent time.Duration)
}
