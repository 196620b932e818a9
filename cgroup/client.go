// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/metalplug/metalplug/daemon/exchange"
)

// Program is the name of the program that [Client] asks.
const Program = "metalplug-holders"

// Client asks the program metalplug-holders, which may look at the processes of others. Its method is safe for
// concurrent use.
type Client struct {
	Peer exchange.Peer
}

// Holders calls the function [Holders] in a process of its own, which ends with it. It does not name the calling process,
// which may have the devices open itself. It takes at most [MaxNumbers] numbers. If there are many processes to name, it names
// one of each pod and node. If a process could not be read, the error is that of [Answer.Err] without pods. The answer then
// names the others, and [Answer.Err] reports those of pods. It blocks until the answer is there or ctx ends.
func (c Client) Holders(ctx context.Context, numbers []Number) (Answer, error) {
	if len(numbers) > MaxNumbers {
		return Answer{}, fmt.Errorf("ask %s: %d device numbers, at most %d are possible", c.Peer.Program, len(numbers), MaxNumbers)
	}
	text, err := c.Peer.Ask(ctx, exchange.Encode(request{numbers}))
	if err != nil {
		return Answer{}, err
	}
	answer, err := decodeAnswer(text)
	if err != nil {
		return Answer{}, fmt.Errorf("ask %s: %w", c.Peer.Program, err)
	}
	for _, h := range answer.Holders {
		if !slices.Contains(numbers, h.Number) {
			return Answer{}, fmt.Errorf("ask %s: %w: %v was not asked about", c.Peer.Program, exchange.ErrMessage, h.Number)
		}
	}
	return answer, answer.Err()
}

// memoryLimit, in bytes, bounds the heap of the garbage collector, and maxProcs the threads of the runtime. MemoryMax= and
// TasksMax= in metalplug-holders@.service leave room for that on a machine of any size.
const (
	memoryLimit = 40 << 20
	maxProcs    = 4
)

// Serve answers the one request of a [Client] that comes over standard input. proc is where the host's procfs is.
func Serve(proc string) error {
	debug.SetMemoryLimit(memoryLimit)
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), maxProcs))
	return exchange.Serve(func(_ context.Context, pid int, request []byte) []byte { return reply(proc, pid, request) })
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
