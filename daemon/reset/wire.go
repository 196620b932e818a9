// SPDX-License-Identifier: Apache-2.0

package reset

// A message is one JSON object (RFC 8259) and nothing after it. A field that this version does not know is an error: the
// other end would rely on it.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/exchange"
)

// MaxList bounds the entries of a list; NVMe subsystems with more namespaces are not for pods.
const MaxList = 128

const (
	maxValue   = 1024           // bytes of a string: paths in sysfs are much shorter
	maxTimeout = 48 * time.Hour // overwriting a large disk takes a day (NVMe Base Specification 2.0, 8.21)
)

// errMessage: a message is not of the form that this version knows.
var errMessage = errors.New("invalid message")

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errMessage, fmt.Sprintf(format, args...))
}

// Encode returns the message. [ParseRequest] refuses that of an invalid request.
func (r Request) Encode() []byte { return encode(r) }

// ParseRequest reads a message. The request is of a valid form then, no more: names and paths may lead anywhere.
func ParseRequest(message []byte) (Request, error) { return parse[Request]("request", message) }

// Encode returns the message. Strings that are too long or have control characters are changed: an answer always arrives.
func (a Answer) Encode() []byte {
	a.Detail, a.Content, a.Done = plain(a.Detail), plain(a.Content), plain(a.Done)
	return encode(a)
}

// ParseAnswer reads a message.
func ParseAnswer(message []byte) (Answer, error) { return parse[Answer]("answer", message) }

func parse[T interface{ validate() error }](what string, message []byte) (v T, err error) {
	if err = decode(message, &v); err == nil {
		err = v.validate()
	}
	if err != nil {
		var none T
		return none, fmt.Errorf("parse %s: %w", what, err)
	}
	return v, nil
}

func encode(v any) []byte {
	message, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, numbers and lists of them: there is nothing that JSON lacks
	}
	return message
}

func decode(message []byte, v any) error {
	if len(message) > exchange.MessageSize {
		return invalidf("%d bytes, at most %d are allowed", len(message), exchange.MessageSize)
	}
	d := json.NewDecoder(bytes.NewReader(message))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return invalidf("%v", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return invalidf("data after the end of the object")
	}
	return nil
}

// validate checks the values by themselves.
func (r Request) validate() error {
	for _, one := range [...]struct {
		name, value string
		allowed     []string
	}{
		{"op", string(r.Op), []string{string(Probe), string(Survey), string(Prepare)}},
		{"class", r.Class, []string{"nvme", "fpga", "gpu", "infiniband", "node"}},
	} {
		if !slices.Contains(one.allowed, one.value) {
			return invalidf("%s %.40q: must be one of %v", one.name, one.value, one.allowed)
		}
	}
	if len(r.Identity) > MaxList || len(r.Together) > MaxList || len(r.Pods) > MaxList {
		return invalidf("%d entries of identity, %d of together and %d of pods, at most %d of each are allowed", len(r.Identity), len(r.Together), len(r.Pods), MaxList)
	}
	texts := []text{{"resource", r.Resource}, {"method", r.Method}, {"scrub", r.Scrub}, {"fingerprint", r.Fingerprint}}
	for _, a := range r.Identity {
		texts = append(texts, text{"identity", a.Name}, text{"identity", a.Value})
	}
	for _, pod := range r.Pods {
		texts = append(texts, text{"pods", pod})
	}
	if err := validTexts(texts); err != nil {
		return err
	}
	for i, p := range append([]string{r.SysPath}, r.Together...) {
		name := [...]string{"sysPath", "together"}[min(i, 1)]
		if err := validTexts([]text{{name, p}}); err != nil {
			return err
		}
		if !path.IsAbs(p) || path.Clean(p) != p {
			return invalidf("%s %.80q: must be an absolute path without empty parts, . or ..", name, p)
		}
	}
	switch {
	case r.TimeoutMS < 1 || r.TimeoutMS > maxTimeout.Milliseconds():
		return invalidf("timeoutMs %d: must be from 1 to %d", r.TimeoutMS, maxTimeout.Milliseconds())
	case r.From < 0:
		return invalidf("from %d: must not be negative", r.From)
	}
	if r.Fingerprint != "" {
		if _, err := parseFingerprint(r.Fingerprint); err != nil {
			return err
		}
	}
	return nil
}

// validate checks the values by themselves.
func (a Answer) validate() error {
	results := []Result{OK, Refused, Foreign, Busy, Gone, Unsupported, Failed, Late, Running, Malformed}
	texts := []text{
		{"detail", a.Detail},
		{"content", a.Content},
		{"fingerprint", a.Fingerprint},
		{"done", a.Done},
		{"appearance", a.Appearance},
	}
	switch {
	case !slices.Contains(results, a.Result):
		return invalidf("result %.40q: must be one of %v", a.Result, results)
	case a.Size < 0 || a.Read < 0 || a.Read > a.Size:
		return invalidf("read %d of %d bytes", a.Read, a.Size)
	}
	return validTexts(texts)
}

// text is a string of a message by the name of its field.
type text struct{ name, value string }

func validTexts(all []text) error {
	for _, t := range all {
		switch {
		case len(t.value) > maxValue:
			return invalidf("%s has %d bytes, at most %d are allowed", t.name, len(t.value), maxValue)
		case strings.ContainsFunc(t.value, isControl):
			return invalidf("control characters in %s", t.name)
		}
	}
	return nil
}

func isControl(c rune) bool { return c < ' ' || c == 0x7f }

// plain returns a text that a message can have: control characters and what is not UTF-8 replaced, and cut where it is
// too long.
func plain(text string) string {
	text = strings.Map(func(c rune) rune {
		if isControl(c) {
			return '?'
		}
		return c
	}, strings.ToValidUTF8(text, "?"))
	return strings.ToValidUTF8(text[:min(len(text), maxValue)], "")
}
