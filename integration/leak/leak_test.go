// SPDX-License-Identifier: Apache-2.0

package leak

import (
	"os"
	"path/filepath"
	"slices"
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

func TestOpened(t *testing.T) {
	before := descriptors()
	file := filepath.Join(t.TempDir(), "left")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := newDescriptors(before); !slices.Equal(got, []string{"open: " + file}) {
		t.Errorf("one file is left open, found are %q", got)
	}
	f.Close()
	if got := newDescriptors(before); len(got) != 0 {
		t.Errorf("none is left open, found are %q", got)
	}
}
