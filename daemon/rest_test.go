// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestRestWaitsForTheLastEvent: what somebody is still removing is left to him, though not for ever.
func TestRestWaitsForTheLastEvent(t *testing.T) {
	for name, test := range map[string]struct {
		events int // one each half of resting
		want   time.Duration
	}{
		"one event":         {1, resting},
		"many":              {10, 9*resting/2 + resting},
		"more and more":     {1000, restingMost},
		"after a look none": {0, auditing},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var r rest
				for range 2 { // after a look it begins anew
					begin, beats := time.Now(), time.NewTicker(resting/2)
					r.looked(true)
					if test.events > 0 {
						r.event()
					}
					for left := test.events - 1; ; {
						select {
						case <-r.due:
						case <-beats.C:
							if left > 0 {
								left--
								r.event()
							}
							continue
						}
						break
					}
					beats.Stop()
					if got := time.Since(begin); got != test.want {
						t.Errorf("it looks after %v, want %v", got, test.want)
					}
					r.looked(false)
					if begin := time.Now(); (<-r.due).Sub(begin) != restingAgain {
						t.Error("what was not made again is not tried again in time")
					}
				}
			})
		})
	}
}
