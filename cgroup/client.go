// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/metalplug/metalplug/daemon/exchange"
)

// Program is the name of the program that [Client] calls.
const Program = "metalplug-holders"

// Client sends requests to the program metalplug-holders, which has the privileges to inspect other processes. The method of
// Client is safe for concurrent use.
type Client struct {
	Peer exchange.Peer
}

// Holders runs the function [Holders] in a separate process, which handles only this request. Holders blocks until the answer
// arrives or ctx ends. While the process starts, Holders calls the function "wanted", which must return at most [MaxNumbers]
// numbers. The answer omits the calling process, which may itself have the devices open. If the holders do not fit into one
// message, the answer contains one holder for each pod and device node. If the helper could not read the open files of a process,
// the error may be [ErrIncomplete], but the answer still contains the holders that were found. The error covers only processes of
// the host and of privileged pods. To cover other pods, call [Answer.Err] with their UIDs.
func (c Client) Holders(ctx context.Context, wanted func() []Number) (Answer, error) {
	var numbers []Number
	r, err := exchange.Call[response](ctx, c.Peer, func() []byte {
		numbers = wanted()
		return exchange.Encode(request{numbers})
	})
	other := func(h Holder) bool { return !slices.Contains(numbers, h.Number) }
	switch {
	case err != nil:
		return Answer{}, err
	case r.Error != "":
		return Answer{}, fmt.Errorf("read the answer of %s: %s", c.Peer.Program, r.Error)
	case slices.ContainsFunc(r.Holders, other):
		return Answer{}, fmt.Errorf("read the answer of %s: %w: the answer contains devices that were not requested", c.Peer.Program, exchange.ErrMessage)
	}
	return r.Answer, r.Err()
}

// memoryLimit is the soft memory limit for the Go runtime, in bytes. The constant maxProcs is the maximum value of GOMAXPROCS.
// With these limits, the process stays below MemoryMax= and TasksMax= in metalplug-holders@.service on machines of any size.
const (
	memoryLimit = 40 << 20
	maxProcs    = 4
)

// Serve answers one request, which a [Client] sends to standard input. The parameter proc is the mount point of the host's
// procfs. If the client no longer waits for the answer, Serve ends the process.
func Serve(proc string) error {
	debug.SetMemoryLimit(memoryLimit)
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), maxProcs))
	return exchange.Serve(func(ctx context.Context, pid int, request []byte) []byte {
		defer context.AfterFunc(ctx, func() { os.Exit(0) })()
		return reply(proc, pid, request)
	})
}

func reply(proc string, asker int, request []byte) []byte {
	numbers, err := decodeRequest(request)
	if err != nil {
		return encodeError(err)
	}
	answer, err := Holders(proc, numbers, asker)
	if err != nil && len(answer.Unread) == 0 {
		return encodeError(err)
	}
	return encodeAnswer(answer)
}
