// SPDX-License-Identifier: Apache-2.0

// Package clock advances time in tests that use testing/synctest. No test waits in real time.
package clock

import "time"

// The clock of a synctest bubble begins at midnight UTC 2000-01-01 (testing/synctest, "Time"). No test advances it by 20
// years, and the clock of every real machine is later than that.
var (
	begins = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)
	ends   = begins.AddDate(20, 0, 0)
)

// Pass advances the clock of a synctest bubble. It returns when all other goroutines in the bubble are blocked until
// then. It panics outside of a bubble, so that no test ever waits in real time.
func Pass(d time.Duration) {
	if now := time.Now(); now.Before(begins) || now.After(ends) {
		panic("clock.Pass outside of a synctest bubble")
	}
	time.Sleep(d)
}
