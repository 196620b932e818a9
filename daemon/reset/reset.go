// SPDX-License-Identifier: Apache-2.0

// Package reset reads, resets and erases devices. The package contains the client for the daemon ([Client]) and the server for
// the program metalplug-reset ([Serve]). The program handles one request and exits. No other program of metalplug opens device
// nodes.
//
// metalplug-reset does not trust any field of the request. The program looks for the device below /sys/devices. The program reads
// /etc/metalplug, and refuses a device that the resource does not select. The program also refuses a method that the resource
// does not name. The program reads kernel attributes to identify the device and to find its users. The kernel can open some kinds
// of devices exclusively. The program opens such a device exclusively and repeats the checks. Then the program does the work,
// verifies the result, and reports the result. If a check has no clear result, the program refuses the request.
package reset

import (
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

// Do is the kind of a request.
type Do string

// Kinds of requests. The first four kinds do not change the device.
const (
	// Look returns the users and the state of a disk. Look neither reads the disk nor opens it exclusively, because a pod may be
	// using the disk.
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

// Request describes the work on one device. A message omits optional fields that have the zero value. A prepare request needs at
// least one attribute in Identity. The helper reads /etc/metalplug, and refuses a device that the resource in Work does not
// select. The helper also refuses a method or an erasure that this resource does not name. A Fingerprint of [Blank] means that
// the disk must be blank.
type Request struct {
	Do Do `json:"do"`
	device.Target
	device.Work // only for a prepare request

	// From is the byte offset at which a survey continues.
	From int64 `json:"from,omitempty"`

	// TimeoutMS is the time limit in milliseconds, at most 48 h. After this time, the helper stops the work if possible. If a
	// system call has not returned by then, the helper answers 2 s later and names the step.
	TimeoutMS int64 `json:"timeoutMs"`
}

// Timeout returns the time limit of the request.
func (r Request) Timeout() time.Duration { return time.Duration(r.TimeoutMS) * time.Millisecond }

// Result is the result of a request. All results except [OK] are errors (see [Answer.Err]).
type Result string

// Results of a request.
const (
	OK          Result = "ok"          // the work is done and verified, or a probe or survey found that the disk is not in use
	Refused     Result = "refused"     // the request does not match the device, or the helper must not change the device
	Foreign     Result = "foreign"     // the disk contains data that the request does not allow; the helper has not erased this data
	Busy        Result = "busy"        // another process or the kernel uses the device
	Gone        Result = "gone"        // the device is absent, or did not come back after a reset
	Unsupported Result = "unsupported" // the device or the kernel does not support the method
	Failed      Result = "failed"      // the work failed, and the state of the device is unknown
	Late        Result = "late"        // a probe or a survey did not finish in time, which is not a fault of the device
	Running     Result = "running"     // a sanitize operation is in progress; a new request waits until it ends
	Malformed   Result = "malformed"   // the request is invalid, and the device was not examined
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

// errorf formats an error like fmt.Errorf, and adds the [Result] r to it.
func errorf(r Result, format string, args ...any) error {
	return outcome{r, fmt.Errorf(format, args...)}
}
