// SPDX-License-Identifier: Apache-2.0

// Package reset looks at what is on a device, resets it and erases it: the daemon's end ([Client]) and the end of the
// program metalplug-reset ([Serve]), which lives for one request and is the only one that opens the nodes of devices.
//
// That program believes nothing that it is told. It finds the device itself, below /sys/devices; checks by the kernel's
// own attributes that it is what the request says, by whatever identifies it that it is the one that is meant, and that
// nobody uses it; opens it exclusively where the kernel can do that; asks all of this again while it holds the device;
// acts; verifies; and says what it has done. Whatever is not certain is a refusal.
package reset

import (
	"fmt"
	"time"
)

// Op is what is asked for.
type Op string

// What can be asked for.
const (
	Probe Op = "probe" // look only: who uses it, what is on it, how it is, what can be done with it
	Reset Op = "reset" // bring it to a known state; erases nothing
	Erase Op = "erase" // make what is on it unreadable; for disks
)

// Request is one thing to do with one device.
type Request struct {
	Op      Op
	SysPath string // what the kernel calls the device: "/sys/devices/…", without a link anywhere in it
	Class   string // "nvme", "fpga", "gpu", "infiniband" or "node"

	// Identity are attributes of sysfs that must read just so, blanks around them aside. To reset or erase takes one at
	// least.
	Identity []Attribute

	// Method is how to reset: "nvme-controller", "nvme-subsystem", "dfl-port", "vfio", "pci" or, to choose one of what
	// the attribute reset_method lists, "pci:flr". Or how to erase: "discard", "secure-discard", "zero", "format",
	// "crypto-erase", "sanitize". Empty for a probe.
	Method string

	// Leftover: what is on the disk is what a pod has left behind. Then neither that nor partitions stand against a reset
	// or an erasure; mounts, holders, swap and exclusive claims still do. A probe neither claims nor reads the disk then,
	// so that it disturbs no pod that has it.
	Leftover bool

	// Print is that of the answer to the last probe, made since a pod has left what is on the disk: if it is another now, that
	// is somebody else's, and the request is refused as [Foreign]. 0: none was made. It says nothing without Leftover.
	Print uint64

	// Offered: a probed disk would be offered whatever is on it, since that will be erased. Then it is made sure that nobody
	// has a claim on it also if it is not blank: of an imported ZFS pool nothing else tells.
	Offered bool

	// Follow: the last answer was [Running]. A sanitize that has ended since then was this one; none is started.
	Follow bool

	// Together are the sysfs paths of the further disks that will be hit too and that no pod holds. Each is checked like
	// the device itself; one that would be hit and is not listed refuses the request.
	Together []string

	// Timeout is how long it may take, in whole milliseconds, at most 48 h. Waits end there. A step that the kernel does
	// not let go of goes on: the answer, which comes 2 s later then, names it.
	Timeout time.Duration
}

// Attribute is an attribute in sysfs, by its name below the path of a device, such as "wwid" or "device/serial".
type Attribute struct{ Name, Value string }

// Result is how a request ended. All but [OK] are errors: see [Answer.Err].
type Result string

// How requests end.
const (
	OK          Result = "ok"          // done and verified; of a probe: nobody uses it
	Refused     Result = "refused"     // the request does not fit the device, or the device must be left alone
	Foreign     Result = "foreign"     // what is on the disk is not what a pod has left there; nothing was done
	Busy        Result = "busy"        // somebody uses it
	Gone        Result = "gone"        // it is not there, or did not come back
	Unsupported Result = "unsupported" // the device or the kernel cannot do that
	Failed      Result = "failed"      // it was tried; the state of the device is not known
	Late        Result = "late"        // of a probe: there is no answer yet, which says nothing of the device
	Running     Result = "running"     // it goes on in the device: ask again, with Follow
	Malformed   Result = "malformed"   // the request made no sense; nothing was looked at
)

// Error returns the result itself, so that errors.Is(err, reset.Busy) holds for what [Answer.Err] returns.
func (r Result) Error() string { return string(r) }

// Answer is what came of a request.
type Answer struct {
	Result   Result
	Detail   string        // for people, one line: what, where, what to do next
	Content  string        // of a probe: what is on the disk, "ext4" or "gpt, unknown data at byte 4096"; empty: nothing
	Print    uint64        // of a probe: a number over all that was read of a disk that is not blank; 0: it was not
	Claimed  bool          // of a probe: all that is known of who uses the disk is that the kernel opens it for nobody else
	Smart    Smart         // of a probe of an NVMe namespace
	Methods  []string      // of a probe: what the device supports
	Done     string        // what was done and how it was verified
	Progress Progress      // of a sanitize
	Took     time.Duration // in whole microseconds
}

// Smart is how an NVMe controller says it is (SMART / Health Information, NVMe Base Specification 2.0, 5.16.1.3).
type Smart struct {
	Known       bool   // whether the controller has told
	Warning     uint8  // critical warning: 1 spare low, 2 temperature, 4 reliability, 8 read-only, 16 backup, 32 PMR
	Used        uint8  // percent of the life that is used; 100 may be exceeded, 255 is the highest
	Spare       uint8  // percent of the spare blocks that are left
	Threshold   uint8  // percent of spare blocks below which Warning has bit 1
	Temperature int    // degrees Celsius
	MediaErrors uint64 // data that could not be read back or was found damaged
}

// Progress is how far a sanitize is.
type Progress struct {
	Percent int
	Left    time.Duration // as the controller estimates, in whole seconds; 0: it does not
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

// Error leaves out the result: that is told beside it.
func (o outcome) Error() string { return o.err.Error() }

// Unwrap returns both, so that errors.As finds the outermost result.
func (o outcome) Unwrap() []error { return []error{o.Result, o.err} }

// errorf makes an error of a result.
func errorf(r Result, format string, args ...any) error {
	return outcome{r, fmt.Errorf(format, args...)}
}
