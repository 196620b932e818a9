// SPDX-License-Identifier: Apache-2.0

package need

import (
	"fmt"
	"testing"
)

// witness is a test that records how it ends.
type witness struct {
	testing.TB
	end string
}

func (w *witness) Helper() {}

func (w *witness) Fatalf(format string, args ...any) {
	w.end += "failed: " + fmt.Sprintf(format, args...) + ";"
}

func (w *witness) Skipf(format string, args ...any) {
	w.end += "skipped: " + fmt.Sprintf(format, args...) + ";"
}

func TestLacks(t *testing.T) {
	for list, want := range map[string]string{
		"":         "skipped: no 7;",
		"roots,vm": "skipped: no 7;",
		"vm,root":  "failed: INTEGRATION_NEED lists root: no 7;skipped: no 7;", // a real test ends after the first call
		"vm root":  "failed: INTEGRATION_NEED lists root: no 7;skipped: no 7;",
		"all":      "failed: INTEGRATION_NEED lists root: no 7;skipped: no 7;",
	} {
		t.Setenv("INTEGRATION_NEED", list)
		w := &witness{TB: t}
		if Lacks(w, "root", "no %d", 7); w.end != want {
			t.Errorf("%q: %s want %s", list, w.end, want)
		}
	}
}
