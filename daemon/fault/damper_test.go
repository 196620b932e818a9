// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/fault"
)

func TestDamper(t *testing.T) {
	const held = "the device fails too often (last: link down) and must first stay healthy for 5m0s"
	for _, test := range []struct {
		name  string
		steps string // "MINUTE sick|well|WANTED HELD", in order
	}{
		{"never sick", "0 well trusted, 60 well trusted"},
		{"sick for good", "0 sick, 1 sick, 2 sick, 3 sick, 4 sick, 5 well trusted"},
		{"now and then", "0 sick, 1 well trusted, 20 sick, 21 well trusted, 40 sick, 41 well trusted, 60 sick, 61 well trusted"},
		{"three times", "0 sick, 1 well trusted, 2 sick, 3 well trusted, 4 sick, 5 well trusted"},
		{"four times", "0 sick, 1 well trusted, 2 sick, 3 well trusted, 4 sick, 5 well trusted, 6 sick, 7 well held, 11 well held, 12 well trusted"},
		{"again while it is held", "0 sick, 1 well trusted, 2 sick, 3 well trusted, 4 sick, 5 well trusted, 6 sick, 7 well held, 11 sick, 12 well held, 16 well held, 17 well trusted"},
		{"held for longer than the window", "0 sick, 1 well trusted, 2 sick, 3 well trusted, 4 sick, 5 well trusted, 6 sick, 60 sick, 61 well held, 66 well trusted"},
		{"forgiven", "0 sick, 1 well trusted, 2 sick, 3 well trusted, 4 sick, 5 well trusted, 6 sick, 7 well held, 12 well trusted, 13 sick, 14 well trusted"},
	} {
		var d fault.Damper
		start, before := time.Now(), ""
		for step := range strings.SplitSeq(test.steps, ", ") {
			words := strings.Fields(step + " trusted")
			minutes, err := time.ParseDuration(words[0] + "m")
			if err != nil {
				t.Fatal(err)
			}
			reason, want := "", ""
			if words[1] == "sick" {
				reason = "link down"
			}
			if words[2] == "held" {
				want = held
			}
			called := false
			got := d.Observe(reason, start.Add(minutes), func(time.Duration) { called = true })
			if got != want {
				t.Errorf("%s: %s: %q, want %q", test.name, step, got, want)
			}
			if became := want == held && before != held; called != became {
				t.Errorf("%s: %s: asked to observe again: %t, want %t", test.name, step, called, became)
			}
			before = want
		}
	}
}
