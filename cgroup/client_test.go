// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/integration/exchangetest"
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
		{"hidden", hidden.dir, `{"nodes":["c 1:3"]}`, `{"error":"inspect processes: not all processes could be inspected: ` + hidden.dir + " hides"},
		{"rubbish", proc.dir, `{"nodes":["c 1:3"`, `{"error":"malformed message: unexpected EOF: \"{`},
		{"an unknown field", proc.dir, `{"nodes":["c 1:3"],"x":1}`, `{"error":"malformed message: json: unknown field \"x\": `},
	} {
		if got, _ := ask(t, c.proc, c.request); !strings.HasPrefix(string(got), c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// malformed are messages that both sides must reject.
var malformed = []string{
	"", "\n", "null null", "[]", "1", `"x"`, "{", "{}{}", "{} x", `{"nodes":["c 1:3"]`, `{"nodes":["c 1:3"]}}`,
	`{"nodes":"c 1:3"}`, `{"nodes":[1]}`, `{"nodes":["d 1:3"]}`, `{"nodes":["c1:3"]}`, `{"nodes":["c 01:3"]}`,
	`{"nodes":["c 1:"]}`, `{"nodes":["c :3"]}`, `{"nodes":["c 1:-3"]}`, `{"nodes":["c 1:3 "]}`, `{"nodes":["c 1:3\n"]}`,
	`{"nodes":["c 4294967296:0"]}`, `{"nodes":["c 0:4294967296"]}`, `{"nodes":["c +1:3"]}`, `{"nodes":[""]}`,
	`{"nodes":["c 1:3"],"force":true}`,
	`{"holders":[{"pid":1,"comm":"","node":"x"}]}`, `{"holders":[{"pid":1,"comm":"","node":"c 1:3","uid":0}]}`,
	`{"unread":[{"count":1,"cause":"","pid":7}]}`, `{"unread":2}`,
}

func TestMalformedMessages(t *testing.T) {
	needsRoot(t)
	dir, err := os.MkdirTemp("", "mp") // a short name, because the path of a unix socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	proc := newTree(t)
	for i, text := range malformed {
		if text != "" {
			if got, _ := ask(t, proc.dir, text); !strings.HasPrefix(string(got), `{"error":"malformed message: `) {
				t.Errorf("the answer to %q is %q", text, got)
			}
		}
		socket := filepath.Join(dir, fmt.Sprint(i))
		exchangetest.Listen(t, socket, func(fd int) {
			unix.Read(fd, make([]byte, exchange.MessageSize))
			unix.Write(fd, []byte(text))
		})
		client := cgroup.Client{Peer: exchange.Peer{Program: cgroup.Program, Socket: socket}}
		if got, err := client.Holders(t.Context(), func() []cgroup.Number { return []cgroup.Number{null} }); err == nil || text != "" && !errors.Is(err, exchange.ErrMessage) {
			t.Errorf("Holders answered with %q = %+v, %v", text, got, err)
		}
	}
	many := `{"nodes":["c 1:3"` + strings.Repeat(`,"c 1:3"`, cgroup.MaxNumbers) + `]}`
	if got, _ := ask(t, proc.dir, many); !strings.Contains(string(got), "1025 nodes, the maximum is 1024") {
		t.Errorf("the answer about too many nodes is %q", got)
	}
}
