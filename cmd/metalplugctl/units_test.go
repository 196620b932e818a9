// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestCheckWarns(t *testing.T) {
	s := &screen{}
	s.writeCheck(checkedFiles{Files: []string{"m.toml"}, Warnings: []string{"the unit a@.service is missing"}})
	if got, want := s.String(), "m.toml: ok\nwarning: the unit a@.service is missing\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
