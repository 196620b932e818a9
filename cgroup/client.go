// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"fmt"
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

// Holders is the function [Holders] in a process of its own, which ends with it: at most [MaxNumbers] numbers, and the
// more there are to name, the fewer of one container. The error is [ErrIncomplete] where a process could not be read; the
// answer then names the others. It blocks until the answer is there or ctx ends.
func (c Client) Holders(ctx context.Context, numbers []Number) (Answer, error) {
	if len(numbers) > MaxNumbers {
		return Answer{}, fmt.Errorf("ask %s: %d device numbers, at most %d are possible", c.Peer.Program, len(numbers), MaxNumbers)
	}
	text, err := c.Peer.Ask(ctx, encodeRequest(numbers))
	if err != nil {
		return Answer{}, err
	}
	answer, err := decodeAnswer(string(text))
	if err != nil {
		return Answer{}, fmt.Errorf("ask %s: %w", c.Peer.Program, err)
	}
	for _, h := range answer.Holders {
		if !slices.Contains(numbers, h.Number) {
			return Answer{}, fmt.Errorf("ask %s: %w: %v was not asked about", c.Peer.Program, errForm, h.Number)
		}
	}
	return answer, answer.Err()
}

// Serve answers the one request of a [Client] that comes over standard input. proc is where the host's procfs is.
func Serve(proc string) error {
	return exchange.Serve(func(request []byte) []byte { return reply(proc, string(request)) })
}

func reply(proc, request string) []byte {
	numbers, err := decodeRequest(request)
	if err != nil {
		return encodeError(err)
	}
	answer, err := Holders(proc, numbers)
	if err != nil && answer.Unread == 0 {
		return encodeError(err)
	}
	return encodeAnswer(answer)
}
