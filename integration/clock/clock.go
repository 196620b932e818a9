// SPDX-License-Identifier: Apache-2.0

// Package clock lets time go by in tests without anybody waiting for it.
package clock

import "time"

// The clock of a synctest bubble begins at midnight UTC 2000-01-01 (testing/synctest, "Time"); no test lets years go by,
// and no machine that runs it stands before the other.
var (
	begins = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)
	ends   = begins.AddDate(20, 0, 0)
)

// Pass lets time go by on the clock of a synctest bubble: it returns when all others in the bubble have nothing to do until
// then. Anywhere else it panics, so that no test ever waits for real.
func Pass(d time.Duration) {
	if now := time.Now(); now.Before(begins) || now.After(ends) {
		panic("clock.Pass outside of a synctest bubble")
	}
	time.Sleep(d)
}
