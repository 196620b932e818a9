// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
)

// State is where a device stands between two tenants.
type State string

// States of the lease.
const (
	StateUnproven  State = "unproven"  // a disk that has not been proven to be nobody's
	StateFree      State = "free"      // the next pod may have it, as far as its tenants go
	StateAllocated State = "allocated" // no container was started with it yet
	StatePreparing State = "preparing"
	StateInUse     State = "in-use"
	StateReleased  State = "released" // its last pod is gone
	StateClearing  State = "clearing"
	StateFailed    State = "failed" // it could not be reset or erased
)

// States are all states.
var States = []State{StateFree, StateAllocated, StatePreparing, StateInUse, StateReleased, StateClearing, StateFailed, StateUnproven}

// state returns where a device stands. unproven says that it lacks evidence.
func (e *entry) state(unproven bool) State {
	w := e.work()
	switch {
	case w.failed != "":
		return StateFailed
	case e.held && w.under > 0:
		return StatePreparing
	case w.under > 0:
		return StateClearing
	case e.held && e.due && !e.dirty:
		return StateAllocated
	case e.held:
		return StateInUse
	case e.dirty:
		return StateReleased
	case unproven:
		return StateUnproven
	}
	return StateFree
}

// reading is the reason of a disk that is being read.
func reading(v Evidence) string {
	return fmt.Sprintf("%v: being read, %d %%", device.ErrUnproven, v.Percent())
}

// Gist is the reason of a status without how far a disk was read, which changes all the time.
func (s *Status) Gist() string {
	return strings.Replace(s.Reason, reading(s.Evidence), reading(Evidence{}), 1)
}
