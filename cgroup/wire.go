// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"

	"github.com/metalplug/metalplug/daemon/exchange"
)

// MaxNumbers is how many device nodes one request can ask about.
const MaxNumbers = 1024

// request is what a [Client] asks for.
type request struct {
	Nodes []Number `json:"nodes"`
}

// response is the answer to a request, or why there is none.
type response struct {
	Answer
	Error string `json:"error,omitempty"`
}

// maxText bounds a text in an answer, in bytes.
const maxText = 256

func decodeRequest(message []byte) ([]Number, error) {
	var r request
	if err := exchange.Decode(message, &r); err != nil {
		return nil, err
	}
	if len(r.Nodes) > MaxNumbers {
		return nil, fmt.Errorf("%w: %d nodes, at most %d are possible", exchange.ErrMessage, len(r.Nodes), MaxNumbers)
	}
	return r.Nodes, nil
}

// encodeAnswer names the unread, then a process of each pod and node, and of the rest as many as there is room for. A holder
// that there is no room for, and that no other stands for, counts as unread, and so do the pods without room.
func encodeAnswer(a Answer) []byte {
	var out response
	left := Unread{Any: true, Cause: "too many pods and holders to name"}
	room := exchange.MessageSize - 2*maxText
	fits := func(v any) bool {
		room -= len(exchange.Encode(v)) + 1
		return room >= 0
	}
	for _, u := range a.Unread {
		if u.PodUID, u.Cause = cut(u.PodUID), cut(u.Cause); len(a.Unread) > maxCauses {
			u.Cause = "not read"
		}
		if fits(u) {
			out.Unread = append(out.Unread, u)
		} else {
			left.Count += u.Count
		}
	}
	for _, first := range []bool{true, false} {
		named := make(map[Holder]bool)
		for _, h := range a.Holders {
			group := Holder{Number: h.Number, PodUID: h.PodUID}
			another := named[group]
			named[group] = true
			switch h.PodUID = cut(h.PodUID); {
			case another == first:
			case fits(h):
				out.Holders = append(out.Holders, h)
			case first:
				left.Count++
			}
		}
	}
	if left.Count > 0 {
		out.Unread = append(out.Unread, left)
	}
	return exchange.Encode(out)
}

// maxCauses is up to how many unread pods each has its cause in an answer. The kubelet runs 110 pods by default.
const maxCauses = 110

func encodeError(err error) []byte { return exchange.Encode(response{Error: cut(err.Error())}) }

func cut(text string) string { return text[:min(len(text), maxText)] }

func decodeAnswer(message []byte) (Answer, error) {
	var r response
	if err := exchange.Decode(message, &r); err != nil {
		return Answer{}, err
	}
	if r.Error != "" {
		return Answer{}, errors.New(r.Error)
	}
	bad := false
	for _, h := range r.Holders {
		bad = bad || h.PID <= 0
	}
	for _, u := range r.Unread {
		bad = bad || u.Count <= 0
	}
	if bad {
		return Answer{}, fmt.Errorf("%w: a count out of range: %.80q", exchange.ErrMessage, message)
	}
	return r.Answer, nil
}

// MarshalText writes a number as [Number.String] does.
func (n Number) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText reads what [Number.String] writes, in that form alone.
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
