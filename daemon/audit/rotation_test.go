// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestRotation(t *testing.T) {
	f := file{name: filepath.Join(t.TempDir(), "audit.jsonl"), size: 100}
	line := func(n int) []byte { return []byte(fmt.Sprintf("%039d\n", n)) } // two of them fit
	for n := range 15 {
		if err := f.append(line(n)); err != nil {
			t.Fatal(err)
		}
	}
	for n, want := range map[string]string{"": string(line(14)), ".1": string(line(12)) + string(line(13))} {
		if got, err := os.ReadFile(f.name + n); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", n, got, err, want)
		}
	}
	if err := f.append(bytes.Repeat([]byte("x"), 200)); err != nil { // more than fits into one file
		t.Error(err)
	}
}
