// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"testing"
	"time"
)

// The memory of a damper must not grow with the number of failures.
func TestDamperForgets(t *testing.T) {
	var d Damper
	now, again := time.Now(), func(time.Duration) {}
	for range 10_000 {
		d.Observe("sick", now, again)
		d.Observe("", now.Add(time.Second), again)
		now = now.Add(time.Minute)
	}
	if n := len(d.failures); n > int(failureWindow/time.Minute)+1 {
		t.Errorf("%d failures are kept", n)
	}
}
