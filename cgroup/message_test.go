// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/exchange"
)

const uid = "03f3f104-3215-44f2-9686-d4dd1f05a7ed"

var null, zero = Number{Major: 1, Minor: 3}, Number{Major: 1, Minor: 5}

var someNumbers = []Number{{Major: 195}, {Major: 195, Minor: 255}, {Block: true, Major: 259, Minor: 1<<20 - 1}}

var someAnswer = Answer{
	Holders: []Holder{
		{PID: 42, Comm: "fio", Number: Number{Block: true, Major: 259, Minor: 1}, PodUID: uid},
		{PID: 1, Comm: "\" 1\n\uFFFDé", Number: null, PodUID: "my static\npod"},
		{PID: 1<<22 - 1, Number: zero},
	},
	Unread: []Unread{
		{Any: true, Count: 2, Cause: `process 7 ("x\n"): open /proc/7/fd: permission denied`},
		{PodUID: uid, Count: 1, Cause: "x"},
	},
}

func decodeAnswer(text []byte) (Answer, error) {
	r, err := exchange.Decode[response](text)
	if r.Error != "" {
		err = errors.New(r.Error)
	}
	return r.Answer, err
}

func TestLongAnswers(t *testing.T) {
	inPod := func(pod string, pid int) Holder {
		return Holder{PID: pid, Comm: strings.Repeat("\x01", 15), Number: null, PodUID: pod}
	}
	var one, each, unread Answer
	for pid := range 5000 {
		one.Holders = append(one.Holders, inPod("a", pid+1))
		each.Holders = append(each.Holders, inPod(fmt.Sprintf("%0200d", pid), pid+1))
	}
	one.Holders = append(one.Holders, inPod("b", 5001), Holder{PID: 5002, Number: null})
	unread.Holders = one.Holders
	for i := range 600 {
		unread.Unread = append(unread.Unread, Unread{PodUID: fmt.Sprintf("%036d", i), Count: 2, Cause: strings.Repeat("\x01", 4*maxText)})
	}
	for _, c := range []struct {
		name    string
		answer  Answer
		holders int
		pods    int // number of unread pods
		none    bool
	}{
		{"many processes of a pod", one, 3, 0, false},
		{"many pods", each, 0, 0, true},
		{"many unread pods", unread, 3, 600, false},
		{"more unread pods than there is room for", Answer{Unread: slices.Repeat(unread.Unread, 2)}, 0, 0, true},
	} {
		text := encodeAnswer(c.answer)
		got, err := decodeAnswer(text)
		if (err != nil) != c.none || len(text) > exchange.MessageSize || len(got.Holders) != c.holders || len(got.Unread) != c.pods || got.Err() != nil {
			t.Errorf("%s: %d bytes, %d holders, %d unread, %v", c.name, len(text), len(got.Holders), len(got.Unread), errors.Join(err, got.Err()))
		}
		if first := []Holder{inPod("a", 1), inPod("b", 5001), {PID: 5002, Number: null}}; c.holders == 3 && !slices.Equal(got.Holders, first) {
			t.Errorf("%s: they are %+v", c.name, got.Holders)
		}
	}
	if text := encodeError(errors.New(strings.Repeat("\x01", 1<<20))); len(text) > exchange.MessageSize {
		t.Errorf("an error has %d bytes", len(text))
	}
}

func FuzzRequest(f *testing.F) {
	f.Add(exchange.Encode(request{}))
	f.Add(exchange.Encode(request{someNumbers}))
	f.Add([]byte(`{"nodes":["c 01:3"],"holders":[{"pid":1,"comm":"","node":"c 1:3","uid":0}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		numbers, err := decodeRequest(text)
		if err != nil {
			return
		}
		again, err := decodeRequest(exchange.Encode(request{numbers}))
		if err != nil || !slices.Equal(again, numbers) || len(numbers) > MaxNumbers {
			t.Errorf("%q is taken for %v, which is %v, %v", text, numbers, again, err)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add(encodeAnswer(Answer{}))
	f.Add(encodeAnswer(someAnswer))
	f.Add(encodeError(errors.New("list /proc: no such file or directory")))
	f.Add([]byte(`{"nodes":["c 01:3"],"holders":[{"pid":1,"comm":"","node":"c 1:3","uid":0}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := decodeAnswer(text)
		if err != nil {
			if a.Holders != nil || a.Unread != nil {
				t.Errorf("%q: %+v, %v", text, a, err)
			}
			return
		}
		message := encodeAnswer(a)
		again, err := decodeAnswer(message)
		if err != nil && err.Error() == "too many pods and holders to list" {
			return
		}
		if err != nil || (again.Err() == nil) != (a.Err() == nil) || len(message) > exchange.MessageSize {
			t.Errorf("%q is taken for %+v, which is %+v, %v", text, a, again, err)
		}
	})
}
