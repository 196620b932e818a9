// SPDX-License-Identifier: Apache-2.0

// Package reset reads, resets and erases devices. It has the client for the daemon ([Client]) and the server for the program
// metalplug-reset ([Serve]). The program handles one request and exits. No other program of metalplug opens device nodes.
//
// metalplug-reset trusts no field of the request. It finds the device below /sys/devices. It reads /etc/metalplug and
// refuses a device or a method that no resource selects. It reads attributes of the kernel to identify the device and to
// find its users. If the kernel supports an exclusive open of the device, it opens the device exclusively and checks again.
// Then it does the work, verifies the result, and reports it. If a check has no clear result, it refuses the request.
package reset

import (
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

// Do is the kind of a request.
type Do string

// Kinds of requests. The first four only read.
const (
	Look    Do = "look"    // returns the users and the state of a device; it neither reads a disk nor opens it exclusively, because a pod has the disk
	Probe   Do = "probe"   // like look, but also returns the content of the disk
	Offer   Do = "offer"   // like probe, but also tries to open the disk exclusively, because nothing else shows an imported ZFS pool
	Survey  Do = "survey"  // reads a disk from Request.From to its end
	Prepare Do = "prepare" // proves that a device is free, resets it, and erases it or proves that it is blank
)

// Blank replaces the fingerprint of a disk that is blank in the quick check.
const Blank = "blank"

// Request describes work on one device. The message omits optional fields with the zero value.
type Request struct {
	Do      Do     `json:"do"`
	SysPath string `json:"sysPath"` // "/sys/devices/…", without a link in any part
	Class   string `json:"class"`   // "nvme", "fpga", "gpu", "infiniband" or "node"

	// Identity lists attributes in sysfs and the values that they must have. Surrounding blanks are ignored. A prepare
	// request needs at least one attribute.
	Identity []device.Attribute `json:"identity,omitempty"`

	// Resource is the resource whose rules apply to a prepare request. The helper reads /etc/metalplug. It refuses a device
	// that this resource does not select, and a method or scrub that the resource does not name.
	Resource string `json:"resource,omitempty"`

	// Method is the reset method of a prepare request, such as "nvme-controller", "dfl-port", "vfio" or "pci". "pci:flr"
	// chooses one method of the attribute reset_method. With "" there is no reset.
	Method string `json:"method,omitempty"`

	// Scrub is the erase method of a prepare request, such as "discard", "secure-discard", "zero", "format", "crypto-erase"
	// or "sanitize". The erasure follows the reset. With "" there is no erasure. A scrub requires Tenant or ByHand.
	Scrub string `json:"scrub,omitempty"`

	// Tenant means that a pod of this node wrote the content of the disk, according to the state of metalplugd.
	Tenant bool `json:"tenant,omitempty"`

	// ByHand means that the operator ordered the work. The helper then also erases data that no pod wrote, and the
	// signatures of volume managers, RAID, LUKS, ZFS and Ceph.
	ByHand bool `json:"byHand,omitempty"`

	// Fingerprint identifies the content that the tenant left or the operator adopted. It comes from the answer to a
	// probe, or is [Blank]. For a prepare request, the helper refuses other content with the result [Foreign] and the
	// Content. A probe reads the same places again, so that the fingerprints can be compared. Fingerprint is "" if
	// unknown.
	Fingerprint string `json:"fingerprint,omitempty"`

	// Written is the number of sectors that had been written to the disk ([sysfs.Written]) when its last pod ended or the
	// operator allowed the erasure. If the number is higher now, an erasure is refused with the result [Foreign]. Written is
	// nil if unknown.
	Written *uint64 `json:"written,omitempty"`

	// From is the byte offset at which a survey continues.
	From int64 `json:"from,omitempty"`

	// Together lists the sysfs paths of the other disks that the work affects. No pod holds them. The helper checks each of
	// them like the device itself. It refuses the request if the list does not have all affected disks.
	Together []string `json:"together,omitempty"`

	// Pods has the UIDs of the pods that have had the disk. If a process of these pods cannot be inspected, it may have
	// the disk open.
	Pods []string `json:"pods,omitempty"`

	// TimeoutMS is the time limit in milliseconds, at most 48 h. When it has passed, the helper stops waiting. If a call of
	// the kernel has not returned by then, the helper answers 2 s later and names the step.
	TimeoutMS int64 `json:"timeoutMs"`
}

// Timeout returns the time limit of the request.
func (r Request) Timeout() time.Duration { return time.Duration(r.TimeoutMS) * time.Millisecond }

// Result is the result of a request. All results except [OK] are errors, see [Answer.Err].
type Result string

// Results.
const (
	OK          Result = "ok"          // done and verified; for a probe or a survey, the disk is not in use
	Refused     Result = "refused"     // the request does not match the device, or the helper must not change the device
	Foreign     Result = "foreign"     // the disk has other data than the request allows, and was not changed
	Busy        Result = "busy"        // another process or the kernel uses the device
	Gone        Result = "gone"        // the device is absent, or did not come back
	Unsupported Result = "unsupported" // the device or the kernel does not support the method
	Failed      Result = "failed"      // the work failed, and the state of the device is unknown
	Late        Result = "late"        // a probe or a survey has not finished in time, which is not a fault of the device
	Running     Result = "running"     // the device continues to work; the next request of this kind waits for the end
	Malformed   Result = "malformed"   // the request is invalid, and the device was not examined
)

// Error makes a result an error, so that errors.Is(err, reset.Busy) works for an error of [Answer.Err].
func (r Result) Error() string { return string(r) }

// Answer is the outcome of a request.
type Answer struct {
	Result      Result       `json:"result"`
	Detail      string       `json:"detail,omitempty"`      // one line for the operator with the action, the device and a remedy
	Content     string       `json:"content,omitempty"`     // content of the disk, such as "ext4" or "gpt, unknown data at byte 4096", or ""
	Fingerprint string       `json:"fingerprint,omitempty"` // fingerprint of the data that was read, or "" for a blank disk
	Claimed     bool         `json:"claimed,omitempty"`     // only for a probe: the kernel refuses an exclusive open, and nothing else shows that the disk is in use
	Smart       device.Smart `json:"smart,omitzero"`        // only for a probe of an NVMe namespace
	Done        string       `json:"done,omitempty"`        // only for a prepare request: the work and how it was verified
	Size        int64        `json:"size,omitempty"`        // size of a disk in bytes
	Read        int64        `json:"read,omitempty"`        // only for a survey: the number of blank bytes before the first data; equal to Size if the whole disk is blank
	Erased      bool         `json:"erased,omitempty"`      // the disk was erased for a prepare request, and this was verified

	// Appearance is the diskseq of the disk after the work. It is "" unless the helper has proven that this is the same
	// medium. The proof is the diskseq, or that the helper had the disk open exclusively.
	Appearance string `json:"appearance,omitempty"`
}

// Err returns nil if the request succeeded. Otherwise it returns an error that wraps the result and has the detail as
// its text.
func (a Answer) Err() error {
	if a.Result == OK {
		return nil
	}
	return fmt.Errorf("%w: %s", a.Result, a.Detail)
}

// outcome is an error with a result.
type outcome struct {
	Result
	err error
}

// Error returns the text without the result.
func (o outcome) Error() string { return o.err.Error() }

// Unwrap returns the result and the cause. So errors.As finds the outermost result.
func (o outcome) Unwrap() []error { return []error{o.Result, o.err} }

// errorf returns an error with a result.
func errorf(r Result, format string, args ...any) error {
	return outcome{r, fmt.Errorf(format, args...)}
}
