// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/exchange"
)

var someNumbers = []Number{{Major: 195}, {Major: 195, Minor: 255}, {Block: true, Major: 259, Minor: 1<<20 - 1}}

var someAnswer = Answer{
	Holders: []Holder{
		{PID: 42, Comm: "fio", Number: Number{Block: true, Major: 259, Minor: 1}, Container: Container{uid, id1, "containerd"}},
		{PID: 1, Comm: "\" 1\n\x80é", Number: null, Container: Container{PodUID: "my static\npod"}},
		{PID: 1<<22 - 1, Number: zero},
	},
	More: 3, Unread: 2, Cause: `process 7 ("x\n"): open /proc/7/fd: permission denied`,
}

func TestMessages(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"request", encodeRequest(someNumbers), "holders\nc 195:0\nc 195:255\nb 259:1048575\n"},
		{"empty request", encodeRequest(nil), "holders\n"},
		{"empty answer", encodeAnswer(Answer{}), "holders 0 0 \"\"\n"},
		{"error", encodeError(errors.New("list /proc: \"x\"")), `error "list /proc: \"x\""` + "\n"},
		{"answer", encodeAnswer(someAnswer), `holders 2 3 "process 7 (\"x\\n\"): open /proc/7/fd: permission denied"
b 259:1 42 "fio" "` + uid + `" "` + id1 + `" "containerd"
c 1:3 1 "\" 1\n\x80\u00e9" "my static\npod" "" ""
c 1:5 4194303 "" "" "" ""
`},
	} {
		if string(c.got) != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, c.got, c.want)
		}
	}
	if got, err := decodeRequest(string(encodeRequest(someNumbers))); err != nil || !slices.Equal(got, someNumbers) {
		t.Errorf("decodeRequest = %v, %v, want %v", got, err, someNumbers)
	}
	if got, err := decodeAnswer(string(encodeAnswer(someAnswer))); err != nil || !reflect.DeepEqual(got, someAnswer) {
		t.Errorf("decodeAnswer = %+v, %v\nwant %+v", got, err, someAnswer)
	}
	if got, err := decodeAnswer(`error "list /proc: \"x\""` + "\n"); err == nil || err.Error() != `list /proc: "x"` || got.Holders != nil {
		t.Errorf("decodeAnswer of an error = %+v, %v", got, err)
	}
}

// malformed are messages that neither end takes for its own.
var malformed = []string{
	"", "\n", "holders", "holder\n", "holders \n", "holders\n\n", "holders\nc 1:3", "holders\nc 1:3\n\n", "holders\nd 1:3\n",
	"holders\nc1:3\n", "holders\nc 01:3\n", "holders\nc 1:03\n", "holders\nc 1:\n", "holders\nc :3\n", "holders\nc 1:-3\n",
	"holders\nc 1:3 \n", "holders\nc 1:3\r\n", "holders\nc 4294967296:0\n", "holders\nc 0:4294967296\n", "holders\nc +1:3\n",
	"holders\nc 281474976710657:0\n",
	"error\n", "error \n", "error \"x\"", "error \"x\"\n\n", "error x\n", "error `x`\n\x00",
	"holders 0 0\n", "holders 0 0 \"\"", "holders 0 0 \"\"\n\n", "holders 00 0 \"\"\n", "holders 0 0 ``\n", "holders -1 0 \"\"\n", "holders 0 0 \"é\"\n",
	"holders 0 0 \"\"\nc 1:3 1 \"\" \"\" \"\"\n", "holders 0 0 \"\"\nc 1:3 1 \"\" \"\" \"\" \"\" \n", "holders 0 0 \"\"\nc 1:3 01 \"\" \"\" \"\" \"\"\n",
	"holders 0 0 \"\"\nc 1:3 1 \"\" \"\" \"\" \"\"", "holders 0 0 \"\"\nc 1:3 1  \"\" \"\" \"\" \"\"\n", "holders 0 0 \"\"\nc 1:3 \"\" \"\" \"\" \"\"\n",
	"holders 0 0 \"\"\nc 1:3 1 \"\"  \"\" \"\" \"\"\n", "holders 0 0 \"\"\n1:3 1 \"\" \"\" \"\" \"\"\n",
}

func TestMalformedMessages(t *testing.T) {
	for _, text := range malformed {
		if got, err := decodeRequest(text); !errors.Is(err, errForm) {
			t.Errorf("decodeRequest(%q) = %v, %v", text, got, err)
		}
		if got, err := decodeAnswer(text); !errors.Is(err, errForm) {
			t.Errorf("decodeAnswer(%q) = %+v, %v", text, got, err)
		}
	}
	most := slices.Repeat(someNumbers[:1], MaxNumbers)
	if got, err := decodeRequest(string(encodeRequest(most))); err != nil || len(got) != MaxNumbers {
		t.Errorf("decodeRequest of %d numbers = %d of them, %v", MaxNumbers, len(got), err)
	}
	if _, err := decodeRequest(string(encodeRequest(append(most, null)))); !errors.Is(err, errForm) {
		t.Errorf("decodeRequest of %d numbers: %v", MaxNumbers+1, err)
	}
}

func TestLongAnswers(t *testing.T) {
	inPod := func(pod string, pid int) Holder {
		return Holder{PID: pid, Comm: strings.Repeat("\x80", 15), Number: null, Container: Container{PodUID: pod, ID: id1}}
	}
	var a Answer
	for pid := range 5000 {
		a.Holders = append(a.Holders, inPod("a", pid+1))
	}
	a.Holders = append(a.Holders, inPod("b", 5001), Holder{PID: 5002, Number: null})
	got, err := decodeAnswer(string(encodeAnswer(a)))
	n := len(got.Holders)
	if err != nil || got.Unread != 0 || n < 100 || n+got.More != 5002 {
		t.Fatalf("%d holders are left of 5002, %d more, %d unread, %v", n, got.More, got.Unread, err)
	}
	want := append([]Holder{inPod("a", 1), inPod("b", 5001), {PID: 5002, Number: null}}, a.Holders[1:n-2]...)
	if !slices.Equal(got.Holders, want) {
		t.Errorf("the first are %+v, want each container once and then the others", got.Holders[:5])
	}

	a = Answer{}
	for pid := range 1000 {
		a.Holders = append(a.Holders, inPod(fmt.Sprintf("%0200d", pid), pid+1))
	}
	got, err = decodeAnswer(string(encodeAnswer(a)))
	if err != nil || got.More != 0 || len(got.Holders)+got.Unread != 1000 || !errors.Is(got.Err(), ErrIncomplete) {
		t.Errorf("%d holders are left of 1000 in as many pods, %d more, %d unread, %v", len(got.Holders), got.More, got.Unread, err)
	}

	a = Answer{Unread: 1, Cause: strings.Repeat("\x80", 1<<20)}
	if text := encodeAnswer(a); len(text) > headSize {
		t.Errorf("the head has %d bytes, at most %d", len(text), headSize)
	}
	if text := encodeError(errors.New(a.Cause)); len(text) > exchange.MessageSize {
		t.Errorf("an error has %d bytes", len(text))
	}
}

func FuzzRequest(f *testing.F) {
	f.Add(string(encodeRequest(nil)))
	f.Add(string(encodeRequest(someNumbers)))
	for _, text := range malformed {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		numbers, err := decodeRequest(text)
		if err != nil {
			return
		}
		if got := string(encodeRequest(numbers)); got != text || len(numbers) > MaxNumbers {
			t.Errorf("%q is taken for %v, which is %q", text, numbers, got)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add(string(encodeAnswer(Answer{})))
	f.Add(string(encodeAnswer(someAnswer)))
	f.Add(string(encodeError(errors.New("list /proc: no such file or directory"))))
	for _, text := range malformed {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := decodeAnswer(text)
		if err != nil {
			if a.Holders != nil || a.Unread != 0 {
				t.Errorf("%q: %+v, %v", text, a, err)
			}
			return
		}
		if got := string(encodeAnswer(a)); got != text {
			t.Errorf("%q is taken for %+v, which is %q", text, a, got)
		}
	})
}
