// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/metalplug/metalplug/daemon/exchange"
)

// Program is the name of the program that [Client] calls.
const Program = "metalplug-holders"

// Client sends requests to the program metalplug-holders, which is privileged to inspect other processes. Client's method is safe
// for concurrent use.
type Client struct {
	Peer exchange.Peer
}

// Holders runs the function [Holders] in a separate process, which handles only this request. Holders blocks until the answer
// arrives or ctx ends. While the process starts, Holders calls the function "wanted", which must return at most [MaxNumbers]
// numbers. The answer omits the calling process, which may itself have the devices open. If the holders do not fit into one
// message, the answer contains only one holder for each pod and device node. If the helper could not read the open files of a
// process, the error may be [ErrIncomplete], but the answer still contains the holders that were found. The error accounts only
// for processes on the host and in privileged pods. To account for other pods, call [Answer.Err] with their UIDs.
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
// With these limits, the process stays below MemoryMax= and TasksMax= in metalplug-holders@.service on a node of any size.
const (
	memoryLimit = 40 << 20
	maxProcs    = 4
)

// Serve answers one request, which a [Client] sends to standard input. The parameter proc is the mount point of the host's
// procfs. If the client stops waiting for the answer, Serve ends the process.
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

// MaxNumbers is the maximum number of device nodes in one request.
const MaxNumbers = 1024

// request is a request from a [Client].
type request struct {
	Nodes []Number `json:"nodes"`
}

// response contains the answer to a request, or an error.
type response struct {
	Answer
	Error string `json:"error,omitempty"`
}

// maxText is the maximum length of a string in an answer, in bytes.
const maxText = 256

func decodeRequest(message []byte) ([]Number, error) {
	r, err := exchange.Decode[request](message)
	if len(r.Nodes) > MaxNumbers {
		return nil, fmt.Errorf("%w: %d nodes, the maximum is %d", exchange.ErrMessage, len(r.Nodes), MaxNumbers)
	}
	return r.Nodes, err
}

// encodeAnswer encodes an answer. If the answer is too large for one message, encodeAnswer keeps only one process for each pod
// and device node. encodeAnswer also omits the reasons why processes could not be read. The reduced answer fits into one message
// even if the node runs the maximum number of pods.
func encodeAnswer(a Answer) []byte {
	out := response{Answer{slices.Clone(a.Holders), slices.Clone(a.Unread)}, ""}
	for i, u := range out.Unread {
		out.Unread[i].PodUID, out.Unread[i].Cause = truncate(u.PodUID), truncate(u.Cause)
	}
	message := exchange.Encode(out)
	if len(message) <= exchange.MessageSize {
		return message
	}
	for i := range out.Unread {
		out.Unread[i].Cause = "not read"
	}
	named := make(map[Holder]bool)
	out.Holders = slices.DeleteFunc(out.Holders, func(h Holder) bool {
		of := Holder{Number: h.Number, PodUID: h.PodUID}
		again := named[of]
		named[of] = true
		return again
	})
	if message = exchange.Encode(out); len(message) <= exchange.MessageSize {
		return message
	}
	return encodeError(errors.New("too many pods and holders to list"))
}

func encodeError(err error) []byte { return exchange.Encode(response{Error: truncate(err.Error())}) }

func truncate(text string) string { return text[:min(len(text), maxText)] }

// MarshalText returns the same text as [Number.String].
func (n Number) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText accepts only the output of [Number.String].
func (n *Number) UnmarshalText(text []byte) error {
	var kind byte
	var read Number
	_, err := fmt.Sscanf(string(text), "%c %d:%d", &kind, &read.Major, &read.Minor)
	read.Block = kind == 'b'
	if err != nil || read.String() != string(text) {
		return fmt.Errorf("invalid device number %.40q: must be as in %q or %q", text, "c 195:0", "b 259:1")
	}
	*n = read
	return nil
}
