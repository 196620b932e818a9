// SPDX-License-Identifier: Apache-2.0

package leak

import (
	"strings"
	"testing"
)

func TestStacks(t *testing.T) {
	if left := stacks(); len(left) > 0 {
		t.Fatalf("before anything runs there are %q", left)
	}
	stop, begun, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		close(begun)
		<-stop
	}()
	<-begun
	if left := stacks(); len(left) != 1 || !strings.Contains(left[0], "TestStacks") {
		t.Errorf("one runs, found are %q", left)
	}
	close(stop)
	<-done
}
