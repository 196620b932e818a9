// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/daemon/exchange"
)

// MaxNumbers is how many device nodes one request can ask about.
const MaxNumbers = 256

// What goes over the wire is lines, of which each has one form only:
//
//	request  holders
//	         {c|b} MAJOR:MINOR                                       a line a node
//
//	answer   holders UNREAD MORE "CAUSE"
//	         {c|b} MAJOR:MINOR PID "COMM" "POD" "CONTAINER" "RUNTIME"  a line a holder
//	or       error "TEXT"
const header = "holders"

// errForm: what came over the wire is in no form that is known.
var errForm = errors.New("malformed message")

func encodeRequest(numbers []Number) []byte {
	text := []byte(header + "\n")
	for _, n := range numbers {
		text = append(append(text, n.String()...), '\n')
	}
	return text
}

func decodeRequest(text string) ([]Number, error) {
	lines, ok := strings.CutPrefix(text, header+"\n")
	if !ok || strings.Count(lines, "\n") > MaxNumbers {
		return nil, fmt.Errorf("%w: %.80q", errForm, text)
	}
	var numbers []Number
	for line := range strings.Lines(lines) {
		n, ok := cutNumber(&line)
		if !ok || line != "\n" {
			return nil, fmt.Errorf("%w: %.80q", errForm, text)
		}
		numbers = append(numbers, n)
	}
	if string(encodeRequest(numbers)) != text { // such as numbers that begin with 0
		return nil, fmt.Errorf("%w: %.80q", errForm, text)
	}
	return numbers, nil
}

// encodeAnswer names a process of each container and node first, and of the rest as many as there is room for. A holder
// that there is no room for, and that nobody else stands for, counts as unread.
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
	var lines []byte
	full := false
	for i, h := range append(first, rest...) {
		line := encodeHolder(h)
		full = full || len(lines)+len(line) > exchange.MessageSize-headSize
		switch {
		case !full:
			lines = append(lines, line...)
		case i < len(first):
			if a.Unread == 0 {
				a.Cause = "there are too many holders to name"
			}
			a.Unread++
		default:
			a.More++
		}
	}
	return append(encodeHead(a), lines...)
}

const (
	textSize = 1 << 10         // bounds a text in bytes
	headSize = 4*textSize + 64 // bounds the first line of an answer: no byte is quoted as more than four
)

func encodeHead(a Answer) []byte {
	return fmt.Appendf(nil, "%s %d %d %s\n", header, a.Unread, a.More, quote(a.Cause))
}

func encodeHolder(h Holder) []byte {
	return fmt.Appendf(nil, "%v %d %s %s %s %s\n", h.Number, h.PID,
		quote(h.Comm), quote(h.Container.PodUID), quote(h.Container.ID), quote(h.Container.Runtime))
}

func encodeError(err error) []byte { return fmt.Appendf(nil, "error %s\n", quote(err.Error())) }

// quote writes a text in ASCII without an end of line.
func quote(text string) string { return strconv.QuoteToASCII(text[:min(len(text), textSize)]) }

func decodeAnswer(text string) (Answer, error) {
	if rest, ok := strings.CutPrefix(text, "error "); ok {
		if cause, ok := cutQuoted(&rest); ok && rest == "\n" {
			return Answer{}, errors.New(cause)
		}
		return Answer{}, fmt.Errorf("%w: %.80q", errForm, text)
	}
	a, ok := cutAnswer(text)
	if !ok || string(encodeAnswer(a)) != text {
		return Answer{}, fmt.Errorf("%w: %.80q", errForm, text)
	}
	return a, nil
}

func cutAnswer(text string) (a Answer, ok bool) {
	head, lines, _ := strings.Cut(text, "\n")
	head, ok = strings.CutPrefix(head, header+" ")
	unread, unreadOK := cutInt(&head, " ")
	more, moreOK := cutInt(&head, " ")
	cause, causeOK := cutQuoted(&head)
	if !ok || !unreadOK || !moreOK || !causeOK || head != "" {
		return Answer{}, false
	}
	a = Answer{Unread: unread, More: more, Cause: cause}
	for line := range strings.Lines(lines) {
		h, ok := cutHolder(line)
		if !ok {
			return Answer{}, false
		}
		a.Holders = append(a.Holders, h)
	}
	return a, true
}

func cutHolder(line string) (h Holder, ok bool) {
	number, numberOK := cutNumber(&line)
	line, ok = strings.CutPrefix(line, " ")
	pid, pidOK := cutInt(&line, " ")
	if !numberOK || !ok || !pidOK {
		return Holder{}, false
	}
	h = Holder{Number: number, PID: pid}
	for i, field := range []*string{&h.Comm, &h.Container.PodUID, &h.Container.ID, &h.Container.Runtime} {
		if i > 0 {
			if line, ok = strings.CutPrefix(line, " "); !ok {
				return Holder{}, false
			}
		}
		if *field, ok = cutQuoted(&line); !ok {
			return Holder{}, false
		}
	}
	return h, line == "\n"
}

// cutNumber removes a device number from the beginning of a text.
func cutNumber(text *string) (n Number, ok bool) {
	kind, rest, ok := strings.Cut(*text, " ")
	if !ok || kind != "c" && kind != "b" {
		return Number{}, false
	}
	major, majorOK := cutInt(&rest, ":")
	end := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
	minor, err := strconv.ParseUint(rest[:end], 10, 32)
	if !majorOK || err != nil || uint64(major) > 1<<32-1 {
		return Number{}, false
	}
	*text = rest[end:]
	return Number{Block: kind == "b", Major: uint32(major), Minor: uint32(minor)}, true
}

// cutInt removes a decimal number that is not negative from the beginning of a text, and what separates it from the rest.
func cutInt(text *string, separator string) (n int, ok bool) {
	digits, rest, ok := strings.Cut(*text, separator)
	v, err := strconv.ParseUint(digits, 10, 48)
	if !ok || err != nil {
		return 0, false
	}
	*text = rest
	return int(v), true
}

// cutQuoted removes a quoted text from the beginning of another.
func cutQuoted(text *string) (s string, ok bool) {
	quoted, err := strconv.QuotedPrefix(*text)
	if err != nil {
		return "", false
	}
	if s, err = strconv.Unquote(quoted); err != nil {
		return "", false
	}
	*text = (*text)[len(quoted):]
	return s, true
}
