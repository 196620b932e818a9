// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"strings"
	"testing"
)

func TestReply(t *testing.T) {
	proc := newTree(t)
	proc.link("1/fd/0", "/dev/null")
	hidden := newTree(t)
	hidden.remove("1")
	unread := newTree(t)
	unread.link("1/fd/0", "0")
	for _, c := range []struct {
		name, proc, request, want string
	}{
		{"a holder", proc.dir, "holders\nc 1:3\n", "holders 0 0 \"\"\nc 1:3 1 \"init\" \"\" \"\" \"\"\n"},
		{"nobody", proc.dir, "holders\nc 1:5\n", "holders 0 0 \"\"\n"},
		{"nothing asked", proc.dir, "holders\n", "holders 0 0 \"\"\n"},
		{"unread", unread.dir, "holders\nc 1:5\n", "holders 1 0 \"process 1 (\\\"init\\\"): stat " + unread.dir + "/1/fd/0: too many levels of symbolic links\"\n"},
		{"hidden", hidden.dir, "holders\nc 1:3\n", "error \"look at processes: not all processes could be looked at: " + hidden.dir + " hides"},
		{"rubbish", proc.dir, "holders\nc 1:3", "error \"malformed message: \\\"holders\\\\nc 1:3\\\"\"\n"},
	} {
		if got := string(reply(c.proc, c.request)); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
