// SPDX-License-Identifier: Apache-2.0

package reset

// A message is a single JSON object (see [exchange.Decode]).

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
)

// MaxList is the maximum number of entries in each list of a request. NVMe subsystems with more namespaces are not supported.
const MaxList = 128

const (
	maxText    = 1024           // maximum size of a message text in bytes
	maxTimeout = 48 * time.Hour // overwriting a large disk takes a day (NVMe Base Specification 2.0, 8.21)
)

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", exchange.ErrMessage, fmt.Sprintf(format, args...))
}

// Encode returns the request as a message. [ParseRequest] refuses the message of an invalid request.
func (r Request) Encode() []byte { return exchange.Encode(r) }

// ParseRequest parses a message and checks that its values are valid. The caller must still check the names and paths.
func ParseRequest(message []byte) (r Request, err error) {
	if r, err = exchange.Decode[Request](message); err == nil {
		err = r.validate()
	}
	return r, err
}

// Encode returns the answer as a message. Encode shortens long strings and replaces control characters, so that the client always
// gets an answer.
func (a Answer) Encode() []byte {
	a.Detail, a.Content, a.Done = cleanText(a.Detail), cleanText(a.Content), cleanText(a.Done)
	return exchange.Encode(a)
}

// isFingerprint reports whether a text has the form of a fingerprint. A fingerprint consists of 16 hexadecimal digits, a colon,
// and 32 hexadecimal digits.
func isFingerprint(s string) bool {
	seed, hash, _ := strings.Cut(s, ":")
	return len(seed) == 16 && len(hash) == 32 && strings.Trim(seed+hash, "0123456789abcdef") == ""
}

// validate checks each value in a request separately.
func (r Request) validate() error {
	switch all := []Do{Look, Probe, Offer, Survey, Prepare}; {
	case !slices.Contains(all, r.Do):
		return invalidf("do %.40q: must be one of %v", r.Do, all)
	case device.ClassNamed(r.Class) == nil:
		return invalidf("class %.40q: no class has that name", r.Class)
	case len(r.Identity) > MaxList || len(r.Together) > MaxList || len(r.Pods) > MaxList:
		return invalidf("%d entries in identity, %d in together and %d in pods: at most %d are allowed in each", len(r.Identity), len(r.Together), len(r.Pods), MaxList)
	case r.TimeoutMS < 1 || r.TimeoutMS > maxTimeout.Milliseconds():
		return invalidf("timeoutMs %d: must be from 1 to %d", r.TimeoutMS, maxTimeout.Milliseconds())
	case r.From < 0:
		return invalidf("from %d: must not be negative", r.From)
	case r.Fingerprint != "" && r.Fingerprint != Blank && !isFingerprint(r.Fingerprint):
		return invalidf("fingerprint %.60q: must be %s or a fingerprint from a probe", r.Fingerprint, Blank)
	}
	return nil
}

// cleanText prepares a text for use in a message. cleanText replaces control characters and invalid UTF-8, and shortens a long
// text.
func cleanText(text string) string {
	text = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return '?'
		}
		return c
	}, strings.ToValidUTF8(text, "?"))
	return strings.ToValidUTF8(text[:min(len(text), maxText)], "")
}

// Program is the name of the program that a [Client] calls.
const Program = "metalplug-reset"

// grace is the time that the program may still use to answer when the time limit of a request has passed. The client waits for
// twice this time. The kubelet waits 30 s for PreStartContainer, so a request with a limit of 25 s leaves one second.
const grace = 2 * time.Second

// Client sends requests to the program metalplug-reset. The methods are safe for concurrent use.
type Client struct{ Peer exchange.Peer }

// Do sends a request and returns the answer. The result in the answer may be an error, see [Answer.Err]. Do itself returns an
// error if it cannot reach the program or if ctx ends. Do also returns an error for an invalid or late answer. In these cases,
// the state of the device is unknown. A survey stops when ctx ends.
func (c Client) Do(ctx context.Context, r Request) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout()+2*grace)
	defer cancel()
	a, err := exchange.Call[Answer](ctx, c.Peer, r.Encode)
	if err == nil && !a.matches(r) {
		return Answer{}, fmt.Errorf("read the answer of %s: %w: the answer is not for a %s request", c.Peer.Program, exchange.ErrMessage, r.Do)
	}
	return a, err
}

// matches reports whether the fields of an answer prove that the request was executed. Without this check, an empty answer from a
// helper of another version could mean that a disk is blank or erased.
func (a Answer) matches(r Request) bool {
	return a.Result != OK || (a.Done != "") == (r.Do == Prepare) && a.Erased == (r.Do == Prepare && r.Scrub != "") &&
		(r.Do != Survey || a.Size > 0 && a.Read >= r.From)
}
