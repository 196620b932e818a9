// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"slices"

	"github.com/metalplug/metalplug/daemon/exchange"
)

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

// maxText is the maximum length of a text in an answer, in bytes.
const maxText = 256

func decodeRequest(message []byte) ([]Number, error) {
	r, err := exchange.Decode[request](message)
	if len(r.Nodes) > MaxNumbers {
		return nil, fmt.Errorf("%w: %d nodes, the maximum is %d", exchange.ErrMessage, len(r.Nodes), MaxNumbers)
	}
	return r.Nodes, err
}

// encodeAnswer encodes an answer. If the answer is too large for one message, encodeAnswer keeps only one process for each pod
// and device node. encodeAnswer also omits why processes could not be read. The reduced answer fits into one message even if the
// node runs the maximum number of pods.
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

// MarshalText returns the text that [Number.String] returns.
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
