// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestCompletionAsksTheProgram(t *testing.T) {
	for shell, first := range map[string]string{
		"bash": "# bash completion V2 for metalplugctl",
		"zsh":  "#compdef metalplugctl",
		"fish": "# fish completion for metalplugctl",
	} {
		t.Run(shell, func(t *testing.T) {
			var out bytes.Buffer
			if err := run([]string{shell}, &out); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(out.String(), first) {
				t.Errorf("begins with %.60q, want %q", out.String(), first)
			}
			if !strings.Contains(out.String(), "__complete") {
				t.Error("the program is not asked for its words")
			}
		})
	}
}

func TestCompletionRefuses(t *testing.T) {
	for _, args := range [][]string{nil, {"tcsh"}, {"bash", "zsh"}} {
		if err := run(args, &bytes.Buffer{}); err == nil {
			t.Errorf("%q is no error", args)
		}
	}
}
