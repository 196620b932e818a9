// SPDX-License-Identifier: Apache-2.0

// Package reset reads a disk, resets a device and erases it. It has the daemon's end ([Client]) and the end of the program
// metalplug-reset ([Serve]). The program lives for one request and is the only one that opens the nodes of devices.
//
// metalplug-reset believes nothing about a device. It finds the device below /sys/devices. It reads /etc/metalplug and refuses
// a device or a method that no resource selects. It checks by the kernel's attributes which device it is, and that no one uses
// it. It opens the device exclusively where the kernel can do that, and checks again while it holds the device. Then it acts,
// verifies, and reports what it has done. It refuses where it is not certain.
package reset

import (
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

// Do is what a request is for.
type Do string

// Kinds of requests. The first four only read.
const (
	Look    Do = "look"    // who uses the device, and how it is; neither reads nor claims a disk, as a pod has it
	Probe   Do = "probe"   // the same, and what is on the disk
	Offer   Do = "offer"   // as probe, and who has a claim on the disk, which would be offered with any content; nothing else shows an imported ZFS pool
	Survey  Do = "survey"  // reads a disk from Request.From to its end
	Prepare Do = "prepare" // proves a device free, resets it, and erases it or proves it blank
)

// Blank in the place of a fingerprint is that of a disk that is blank in the quick check.
const Blank = "blank"

// Request is what to do to one device. The zero value of an optional field is left out of the message.
type Request struct {
	Do      Do     `json:"do"`
	SysPath string `json:"sysPath"` // "/sys/devices/…", without a link anywhere in it
	Class   string `json:"class"`   // "nvme", "fpga", "gpu", "infiniband" or "node"

	// Identity are attributes of sysfs that must read so, surrounding blanks aside. To prepare takes at least one.
	Identity []device.Attribute `json:"identity,omitempty"`

	// Resource is the resource whose rules apply to a prepare. The helper reads /etc/metalplug and refuses a device that
	// this resource does not select, and a method or scrub that it does not name.
	Resource string `json:"resource,omitempty"`

	// Method is how a prepare resets the device first, as "nvme-controller", "dfl-port", "vfio", "pci" or, to choose one of
	// the attribute reset_method, "pci:flr". With "" it does not.
	Method string `json:"method,omitempty"`

	// Scrub is how a prepare erases the disk after that, as "discard", "secure-discard", "zero", "format", "crypto-erase" or
	// "sanitize". With "" it does not. A scrub needs Tenant or ByHand.
	Scrub string `json:"scrub,omitempty"`

	// Tenant reports whether a pod of this node left what is on the disk, as the daemon's state has it.
	Tenant bool `json:"tenant,omitempty"`

	// ByHand reports whether the operator asked for it. Then neither data that no pod left nor the signatures of volume
	// managers, RAID, LUKS, ZFS and Ceph refuse an erasure.
	ByHand bool `json:"byHand,omitempty"`

	// Fingerprint is that of what the tenant left or the operator adopted, from the answer to a probe, or [Blank]. A prepare
	// refuses other data as [Foreign], with the Content. A probe reads the same places again, so that its answer can be
	// compared. It is "" if it is not known.
	Fingerprint string `json:"fingerprint,omitempty"`

	// Written is the number of sectors that had been written to the disk ([sysfs.Written]) when its last pod had gone or the
	// operator allowed to erase it. A prepare that erases refuses a disk with more as [Foreign]. It is nil if the number is not known.
	Written *uint64 `json:"written,omitempty"`

	// From is the byte at which a survey goes on.
	From int64 `json:"from,omitempty"`

	// Together are the sysfs paths of the further disks that will be hit too and that no pod holds. Each is checked like
	// the device itself. A disk that would be hit and is not listed refuses the request.
	Together []string `json:"together,omitempty"`

	// Pods are the UIDs of the pods that have had the disk. Processes of theirs that cannot be read may have it open.
	Pods []string `json:"pods,omitempty"`

	// TimeoutMS is how long it may take, in milliseconds, at most 48 h. Waits end there. A step that the kernel does not let
	// go of goes on. The answer then comes 2 s later and names the step.
	TimeoutMS int64 `json:"timeoutMs"`
}

// Timeout returns how long the request may take.
func (r Request) Timeout() time.Duration { return time.Duration(r.TimeoutMS) * time.Millisecond }

// Result is how a request ended. All but [OK] are errors. See [Answer.Err].
type Result string

// Results.
const (
	OK          Result = "ok"          // done and verified, or not in use after a probe or a survey
	Refused     Result = "refused"     // the request does not fit the device, or the device must be left alone
	Foreign     Result = "foreign"     // the disk holds other data than it may, and nothing was done
	Busy        Result = "busy"        // another process or the kernel uses it
	Gone        Result = "gone"        // it is not there, or did not come back
	Unsupported Result = "unsupported" // the device or the kernel cannot do that
	Failed      Result = "failed"      // it was tried, and the state of the device is not known
	Late        Result = "late"        // a probe or a survey has no answer yet, which says nothing of the device
	Running     Result = "running"     // it goes on in the device, and the next request of the kind follows it
	Malformed   Result = "malformed"   // the request is not valid, and nothing was looked at
)

// Error returns the result itself, so that errors.Is(err, reset.Busy) holds for the error of [Answer.Err].
func (r Result) Error() string { return string(r) }

// Answer is the outcome of a request.
type Answer struct {
	Result      Result       `json:"result"`
	Detail      string       `json:"detail,omitempty"`      // one line for people, with what, where and what to do next
	Content     string       `json:"content,omitempty"`     // on the disk, as "ext4" or "gpt, unknown data at byte 4096", or ""
	Fingerprint string       `json:"fingerprint,omitempty"` // of all that was read of a disk, or "" for a blank one
	Claimed     bool         `json:"claimed,omitempty"`     // the one sign of use in a probe is that the kernel refuses an exclusive open
	Smart       device.Smart `json:"smart,omitzero"`        // of a probe of an NVMe namespace
	Done        string       `json:"done,omitempty"`        // by a prepare, and how it was verified
	Size        int64        `json:"size,omitempty"`        // of a disk, in bytes
	Read        int64        `json:"read,omitempty"`        // by a survey, which found all before this byte blank; Size after the whole disk
	Erased      bool         `json:"erased,omitempty"`      // a prepare erased the disk and verified that

	// Appearance is the diskseq of the disk that was proven to be the same medium afterwards, by the kernel's number or by our
	// exclusive hold. It is "" if that is not proven.
	Appearance string `json:"appearance,omitempty"`
}

// Err returns nil if all went well, or an error that is the result (errors.Is) and has the detail.
func (a Answer) Err() error {
	if a.Result == OK {
		return nil
	}
	return fmt.Errorf("%w: %s", a.Result, a.Detail)
}

// outcome is an error with the result that it makes.
type outcome struct {
	Result
	err error
}

// Error leaves out the result, which stands next to it.
func (o outcome) Error() string { return o.err.Error() }

// Unwrap returns both, so that errors.As finds the outermost result.
func (o outcome) Unwrap() []error { return []error{o.Result, o.err} }

// errorf makes an error of a result.
func errorf(r Result, format string, args ...any) error {
	return outcome{r, fmt.Errorf(format, args...)}
}
