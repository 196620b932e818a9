// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"strings"
	"testing"
)

func TestReply(t *testing.T) {
	needsRoot(t)
	proc := newTree(t)
	proc.link("1/fd/0", "/dev/null")
	hidden := newTree(t)
	hidden.remove("1")
	unread := newTree(t)
	unread.link("1/fd/0", unread.dir+"/1/fd/0")
	for _, c := range []struct {
		name, proc, request, want string
	}{
		{"a holder", proc.dir, `{"nodes":["c 1:3"]}`, `{"holders":[{"pid":1,"comm":"init","node":"c 1:3"}]}`},
		{"no holder", proc.dir, `{"nodes":["c 1:5"]}`, `{}`},
		{"no nodes", proc.dir, `{"nodes":[]}`, `{}`},
		{"unread", unread.dir, `{"nodes":["c 1:5"]}`, `{"unread":[{"any":true,"count":1,"cause":"process 1 (\"init\"): stat ` + unread.dir + "/1/fd/0: too many levels of symbolic links\"}]}"},
		{"hidden", hidden.dir, `{"nodes":["c 1:3"]}`, `{"error":"look at processes: not all processes could be looked at: ` + hidden.dir + " hides"},
		{"rubbish", proc.dir, `{"nodes":["c 1:3"`, `{"error":"malformed message: unexpected EOF: \"{`},
		{"an unknown field", proc.dir, `{"nodes":["c 1:3"],"x":1}`, `{"error":"malformed message: json: unknown field \"x\": `},
	} {
		if got, _ := ask(t, c.proc, c.request); !strings.HasPrefix(string(got), c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
