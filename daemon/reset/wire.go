// SPDX-License-Identifier: Apache-2.0

package reset

// A message is lines of a key, a blank and a value, in a fixed order, from "metalplug-reset 1" to "end". There is one
// way only to write anything, so that what parses is written the same again.

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	firstLine = "metalplug-reset 1" // the number is the version
	lastLine  = "end"

	valueSize   = 1024           // most bytes of a value: paths in sysfs are shorter by far
	mostLines   = 128            // of one key; NVMe subsystems with more namespaces are not for pods
	longestTime = 48 * time.Hour // overwriting a large disk takes a day (NVMe Base Specification 2.0, 8.21)
)

// errMessage: a message is not of the form that this version knows.
var errMessage = errors.New("message makes no sense")

// Encode returns the message. What cannot be written, such as a line feed in a value, gives one that does not parse.
func (r Request) Encode() []byte {
	w := writer{firstLine + "\n"}
	w.line("op", string(r.Op))
	w.line("syspath", r.SysPath)
	w.line("class", r.Class)
	w.line("method", r.Method)
	w.line("leftover", yesNo(r.Leftover))
	w.line("offered", yesNo(r.Offered))
	w.line("follow", yesNo(r.Follow))
	w.line("print", strconv.FormatUint(r.Print, 10))
	w.line("timeout", strconv.FormatInt(r.Timeout.Milliseconds(), 10))
	for _, a := range r.Identity {
		w.line("identity", a.Name+" "+a.Value)
	}
	for _, p := range r.Together {
		w.line("together", p)
	}
	return []byte(w.text + lastLine + "\n")
}

// ParseRequest reads a message. The request is of the right form then, no more: names and paths may lead anywhere.
func ParseRequest(message []byte) (Request, error) {
	p := parser{rest: string(message)}
	p.literal(firstLine)
	r := Request{
		Op:       Op(p.one("op", string(Probe), string(Reset), string(Erase))),
		SysPath:  p.value("syspath"),
		Class:    p.one("class", "nvme", "fpga", "gpu", "infiniband", "node"),
		Method:   p.value("method"),
		Leftover: p.one("leftover", "yes", "no") == "yes",
		Offered:  p.one("offered", "yes", "no") == "yes",
		Follow:   p.one("follow", "yes", "no") == "yes",
		Print:    p.unsigned("print"),
		Timeout:  time.Duration(p.number("timeout", 1, longestTime.Milliseconds())) * time.Millisecond,
	}
	for p.has("identity") {
		name, value, _ := strings.Cut(p.value("identity"), " ")
		r.Identity = append(r.Identity, Attribute{name, value})
	}
	for p.has("together") {
		r.Together = append(r.Together, p.value("together"))
	}
	p.literal(lastLine)
	if err := p.end(message, r.Encode); err != nil {
		return Request{}, fmt.Errorf("parse request: %w", err)
	}
	return r, nil
}

// Encode returns the message. What cannot be written is replaced: an answer always arrives.
func (a Answer) Encode() []byte {
	w := writer{firstLine + "\n"}
	w.line("result", string(a.Result))
	w.line("detail", plain(a.Detail))
	w.line("content", plain(a.Content))
	w.line("print", strconv.FormatUint(a.Print, 10))
	w.line("claimed", yesNo(a.Claimed))
	w.line("done", plain(a.Done))
	w.line("smart", yesNo(a.Smart.Known))
	w.line("warning", strconv.Itoa(int(a.Smart.Warning)))
	w.line("used", strconv.Itoa(int(a.Smart.Used)))
	w.line("spare", strconv.Itoa(int(a.Smart.Spare)))
	w.line("threshold", strconv.Itoa(int(a.Smart.Threshold)))
	w.line("temperature", strconv.Itoa(a.Smart.Temperature))
	w.line("mediaerrors", strconv.FormatUint(a.Smart.MediaErrors, 10))
	w.line("percent", strconv.Itoa(a.Progress.Percent))
	w.line("left", strconv.FormatInt(int64(a.Progress.Left/time.Second), 10))
	w.line("took", strconv.FormatInt(a.Took.Microseconds(), 10))
	for _, m := range a.Methods {
		w.line("can", plain(m))
	}
	return []byte(w.text + lastLine + "\n")
}

// ParseAnswer reads a message.
func ParseAnswer(message []byte) (Answer, error) {
	p := parser{rest: string(message)}
	p.literal(firstLine)
	a := Answer{
		Result: Result(p.one("result", string(OK), string(Refused), string(Foreign), string(Busy), string(Gone), string(Unsupported),
			string(Failed), string(Late), string(Running), string(Malformed))),
		Detail:  p.value("detail"),
		Content: p.value("content"),
		Print:   p.unsigned("print"),
		Claimed: p.one("claimed", "yes", "no") == "yes",
		Done:    p.value("done"),
		Smart: Smart{
			Known:       p.one("smart", "yes", "no") == "yes",
			Warning:     uint8(p.number("warning", 0, 255)),
			Used:        uint8(p.number("used", 0, 255)),
			Spare:       uint8(p.number("spare", 0, 255)),
			Threshold:   uint8(p.number("threshold", 0, 255)),
			Temperature: int(p.number("temperature", -273, 65535)),
			MediaErrors: p.unsigned("mediaerrors"),
		},
		Progress: Progress{
			Percent: int(p.number("percent", 0, 100)),
			Left:    time.Duration(p.number("left", 0, 1<<32)) * time.Second,
		},
		Took: time.Duration(p.number("took", 0, 1<<48)) * time.Microsecond,
	}
	for p.has("can") {
		a.Methods = append(a.Methods, p.value("can"))
	}
	p.literal(lastLine)
	if err := p.end(message, a.Encode); err != nil {
		return Answer{}, fmt.Errorf("parse answer: %w", err)
	}
	return a, nil
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// plain returns a text that a line can have: control characters replaced, and cut where it is too long.
func plain(text string) string {
	b := []byte(text[:min(len(text), valueSize)])
	for i, c := range b {
		if isControl(c) {
			b[i] = '?'
		}
	}
	return string(b)
}

func isControl(c byte) bool { return c < ' ' || c == 0x7f }

type writer struct{ text string }

func (w *writer) line(key, value string) { w.text += key + " " + value + "\n" }

// parser takes a message apart, line by line. After the first error everything is empty.
type parser struct {
	rest string
	err  error
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%w: %s", errMessage, fmt.Sprintf(format, args...))
	}
	p.rest = ""
}

// line takes the next line.
func (p *parser) line() string {
	line, rest, ok := strings.Cut(p.rest, "\n")
	if !ok {
		p.fail("it ends within a line")
		return ""
	}
	p.rest = rest
	return line
}

func (p *parser) literal(want string) {
	if line := p.line(); line != want {
		p.fail("%.40q is not %q", line, want)
	}
}

// has tells whether the next line has a key.
func (p *parser) has(key string) bool { return strings.HasPrefix(p.rest, key+" ") }

// value takes the next line, which has to have a key.
func (p *parser) value(key string) string {
	value, ok := strings.CutPrefix(p.line(), key+" ")
	switch {
	case !ok:
		p.fail("no %q", key)
	case len(value) > valueSize:
		p.fail("%s has %d bytes, at most %d are possible", key, len(value), valueSize)
	case slices.ContainsFunc([]byte(value), isControl):
		p.fail("control characters in %s", key)
	default:
		return value
	}
	return ""
}

// one takes a line whose value is one of a few.
func (p *parser) one(key string, possible ...string) string {
	value := p.value(key)
	if !slices.Contains(possible, value) {
		p.fail("%s %.40q is none of %v", key, value, possible)
	}
	return value
}

func (p *parser) number(key string, least, most int64) int64 {
	value := p.value(key)
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < least || n > most {
		p.fail("%s %.40q is no number from %d to %d", key, value, least, most)
		return 0
	}
	return n
}

func (p *parser) unsigned(key string) uint64 {
	value := p.value(key)
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		p.fail("%s %.40q is no number", key, value)
	}
	return n
}

// end checks that all has been taken, and that what was taken is written the same again: "+1" is a number too.
func (p *parser) end(message []byte, encode func() []byte) error {
	for _, key := range [...]string{"\nidentity ", "\ntogether ", "\ncan "} {
		if n := strings.Count(string(message), key); p.err == nil && n > mostLines {
			p.fail("%d lines of %s", n, strings.TrimSpace(key))
		}
	}
	if p.err == nil && p.rest != "" {
		p.fail("%d bytes after its end", len(p.rest))
	}
	if p.err == nil && string(encode()) != string(message) {
		p.fail("it is not in its plain form")
	}
	return p.err
}
