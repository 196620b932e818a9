// SPDX-License-Identifier: Apache-2.0

// Package reset reads, resets and erases devices. The package contains the client for the daemon ([Client]) and the server for
// the program metalplug-reset ([Serve]). The program handles one request and exits. No other metalplug program opens device
// nodes.
//
// metalplug-reset does not trust any field in the request. The program looks for the device below /sys/devices. It reads
// /etc/metalplug, and refuses a device that the resource does not select, or a method that the resource does not name. The
// program reads kernel attributes to identify the device and to find its users. If the kernel can open this kind of device
// exclusively, the program does so and repeats the checks. Then the program does the work, and verifies and reports the result.
// If a check has no clear result, the program refuses the request.
package reset

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/internal/fsutil"
)

// Do is the kind of request.
type Do string

// Kinds of requests. The first four kinds do not change the device.
const (
	// Look returns a disk's users and state. Look neither reads the disk nor opens it exclusively, because a pod may be using the
	// disk.
	Look  Do = "look"
	Probe Do = "probe" // like Look, but also reads the disk and describes its content
	// Offer is like Probe, but always tries to open the disk exclusively. Only this open shows that the disk belongs to an
	// imported ZFS pool.
	Offer   Do = "offer"
	Survey  Do = "survey"  // reads a disk from Request.From to its end
	Prepare Do = "prepare" // proves that a device is free and resets the device; erases a disk or proves that the disk is blank
)

// Blank is used instead of a fingerprint for a disk that must be blank.
const Blank = "blank"

// Request describes the work on one device. In a message, optional fields with the zero value are omitted. A prepare request
// needs at least one attribute in Identity. The helper reads /etc/metalplug, and refuses a device that the resource in Work does
// not select. The helper also refuses a reset or erase method that this resource does not name. A Fingerprint of [Blank] means
// that the disk must be blank.
type Request struct {
	Do Do `json:"do"`
	device.Target
	device.Work // only for a prepare request

	// From is the byte offset at which a survey continues.
	From int64 `json:"from,omitempty"`

	// TimeoutMS is the time limit in milliseconds, at most 48 h. When it has passed, the helper stops the work if it can. If a
	// system call has not returned by then, the helper answers 2 s later and names the step.
	TimeoutMS int64 `json:"timeoutMs"`
}

// Timeout returns the request's time limit.
func (r Request) Timeout() time.Duration { return time.Duration(r.TimeoutMS) * time.Millisecond }

// Result is the result of a request. All results except [OK] are errors (see [Answer.Err]).
type Result string

// Results of a request.
const (
	OK          Result = "ok"          // the work is done and verified, or a probe or survey found that the disk is not in use
	Refused     Result = "refused"     // the request does not match the device, or the helper must not change the device
	Foreign     Result = "foreign"     // the disk contains data that the request does not allow; the helper has not erased this data
	Busy        Result = "busy"        // another process or the kernel is using the device
	Gone        Result = "gone"        // the device is absent, or did not come back after a reset
	Unsupported Result = "unsupported" // the device or the kernel does not support the method
	Failed      Result = "failed"      // the work failed, and the device's state is unknown
	Late        Result = "late"        // a probe or a survey did not finish in time, which is not the device's fault
	Running     Result = "running"     // a sanitize operation is in progress; a new request waits until it ends
	Malformed   Result = "malformed"   // the request is invalid, and the helper did not examine the device
)

// Error makes a result an error, so that errors.Is(err, reset.Busy) works for an error from [Answer.Err].
func (r Result) Error() string { return string(r) }

// Answer is the outcome of a request.
type Answer struct {
	Result Result `json:"result"`
	Detail string `json:"detail,omitempty"` // a line for the operator that names the action, the device and a remedy
	device.Report
}

// Err returns nil if the request succeeded. Otherwise, Err returns an error that wraps the result and contains the detail.
func (a Answer) Err() error {
	if a.Result == OK {
		return nil
	}
	return fmt.Errorf("%w: %s", a.Result, a.Detail)
}

// outcome is an error that contains a [Result].
type outcome struct {
	Result
	err error
}

// Error returns the text of the error and omits the result.
func (o outcome) Error() string { return o.err.Error() }

// Unwrap returns the result and the cause. The result comes first, so that errors.As finds the outermost result.
func (o outcome) Unwrap() []error { return []error{o.Result, o.err} }

// errorf formats an error like fmt.Errorf and adds the [Result] r to it.
func errorf(r Result, format string, args ...any) error {
	return outcome{r, fmt.Errorf(format, args...)}
}

// A message is a single JSON object (see [exchange.Decode]).

// MaxList is the maximum number of entries in each of a request's lists. NVMe subsystems with more namespaces are not supported.
const MaxList = 128

const (
	maxText    = 1024           // maximum size of a message text in bytes
	maxTimeout = 48 * time.Hour // overwriting a large disk takes a day (NVMe Base Specification 2.0, 8.21)
)

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", exchange.ErrMessage, fmt.Sprintf(format, args...))
}

// Encode returns the request as a message. [ParseRequest] refuses a message that contains an invalid request.
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
	text = fsutil.Printable(text)
	return strings.ToValidUTF8(text[:min(len(text), maxText)], "")
}

// Program is the name of the program that a [Client] calls.
const Program = "metalplug-reset"

// grace is how much longer the program may take to answer after a request's time limit has passed. The client waits for twice
// this time. The kubelet waits 30 s for PreStartContainer, so a request with a limit of 25 s leaves one second.
const grace = 2 * time.Second

// Client sends requests to the program metalplug-reset. The methods are safe for concurrent use.
type Client struct{ Peer exchange.Peer }

// Do sends a request and returns the answer. The result in the answer may be an error (see [Answer.Err]). Do itself returns an
// error if it cannot reach the program or if ctx ends. Do also returns an error for an invalid or late answer. After such an
// error, the device's state is unknown. A survey stops when ctx ends.
func (c Client) Do(ctx context.Context, r Request) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout()+2*grace)
	defer cancel()
	a, err := exchange.Call[Answer](ctx, c.Peer, r.Encode)
	if err == nil && !a.matches(r) {
		return Answer{}, fmt.Errorf("read the answer of %s: %w: the answer is not for a %s request", c.Peer.Program, exchange.ErrMessage, r.Do)
	}
	return a, err
}

// matches reports whether the answer's fields prove that the request was carried out. Without this check, an empty answer from a
// different version of the helper could mean that a disk is blank or erased.
func (a Answer) matches(r Request) bool {
	return a.Result != OK || (a.Done != "") == (r.Do == Prepare) && a.Erased == (r.Do == Prepare && r.Scrub != "") &&
		(r.Do != Survey || a.Size > 0 && a.Read >= r.From)
}
