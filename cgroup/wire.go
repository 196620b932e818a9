// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

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

// errForm means that a message is not in the form of a request or an answer.
var errForm = errors.New("malformed message")

// maxText bounds a text in an answer, in bytes.
const maxText = 1 << 10

// decode reads one JSON value without unknown fields, which must be all of a message.
func decode(message []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(message))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		err = errors.New("more than one value")
	}
	return fmt.Errorf("%w: %w: %.80q", errForm, err, message)
}

// encode writes a value of which nothing cannot be written.
func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

func decodeRequest(message []byte) ([]Number, error) {
	var r request
	if err := decode(message, &r); err != nil {
		return nil, err
	}
	if len(r.Nodes) > MaxNumbers {
		return nil, fmt.Errorf("%w: %d nodes, at most %d are possible", errForm, len(r.Nodes), MaxNumbers)
	}
	return r.Nodes, nil
}

// encodeAnswer names a process of each container and node first, and of the rest as many as there is room for. A holder
// that there is no room for, and that no other stands for, counts as unread, and so do the pods without room.
func encodeAnswer(a Answer) []byte {
	type group struct {
		Container
		Number
	}
	var first, rest []Holder
	named := make(map[group]bool)
	for _, h := range a.Holders {
		if g := (group{h.Container, h.Number}); !named[g] {
			named[g] = true
			first = append(first, h)
		} else {
			rest = append(rest, h)
		}
	}
	// The pods that could not be read get half of the room at most, and the holders what is left.
	const room = exchange.MessageSize - 4*maxText
	out := response{Answer: Answer{More: a.More}}
	size := 0
	all := Unread{Any: true, Cause: "too many pods and holders to name"}
	for _, u := range a.Unread {
		u.PodUID, u.Cause = cut(u.PodUID), cut(u.Cause)
		if size+len(encode(u)) > room/8 {
			u.Cause = "not read"
		}
		if n := 1 + len(encode(u)); size+n <= room/2 {
			size += n
			out.Unread = append(out.Unread, u)
		} else {
			all.Count += u.Count
		}
	}
	full := false
	for i, h := range append(first, rest...) {
		h.Comm, h.Container.PodUID = cut(h.Comm), cut(h.Container.PodUID)
		if !full {
			size += 1 + len(encode(h))
			full = size > room
		}
		switch {
		case !full:
			out.Holders = append(out.Holders, h)
		case i < len(first):
			all.Count++
		default:
			out.More++
		}
	}
	if all.Count > 0 {
		out.Unread = append(out.Unread, all)
	}
	return encode(out)
}

func encodeError(err error) []byte { return encode(response{Error: cut(err.Error())}) }

// cut bounds a text, and makes it one that JSON can carry.
func cut(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxText)], "\uFFFD")
}

func decodeAnswer(message []byte) (Answer, error) {
	var r response
	if err := decode(message, &r); err != nil {
		return Answer{}, err
	}
	if r.Error != "" {
		return Answer{}, errors.New(r.Error)
	}
	bad := r.More < 0
	for _, h := range r.Holders {
		bad = bad || h.PID <= 0
	}
	for _, u := range r.Unread {
		bad = bad || u.Count <= 0
	}
	if bad {
		return Answer{}, fmt.Errorf("%w: a count out of range: %.80q", errForm, message)
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
