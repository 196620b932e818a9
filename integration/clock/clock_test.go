// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, done := time.Now(), false
		go func() {
			Pass(time.Hour)
			done = true
		}()
		Pass(2 * time.Hour)
		synctest.Wait()
		if took := time.Since(began); !done || took != 2*time.Hour {
			t.Errorf("after %v, the other is done: %v", took, done)
		}
	})
}

func TestPassForReal(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("time went by outside of a bubble")
		}
	}()
	Pass(time.Nanosecond)
}
