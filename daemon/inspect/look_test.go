// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"testing"
	"time"
)

func TestPause(t *testing.T) {
	for _, c := range []struct{ since, took, want time.Duration }{
		{0, 0, 50 * time.Millisecond},
		{10 * time.Second, time.Millisecond, 2500 * time.Millisecond},
		{20 * time.Second, 20 * time.Second, 20 * time.Second}, // the first inspection was abandoned
		{200 * time.Second, 20 * time.Second, 50 * time.Second},
		{time.Hour, time.Second, 5 * time.Minute},
		{time.Hour, time.Hour, 5 * time.Minute},
	} {
		if got := pause(c.since, c.took); got != c.want {
			t.Errorf("after %v, of which the last look took %v: %v, want %v", c.since, c.took, got, c.want)
		}
	}
}
