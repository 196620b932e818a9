// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// Reasons why a class does not offer a device. Each is wrapped with details.
var (
	// ErrGone means that the hardware is no longer present.
	ErrGone = sysfs.ErrGone
	// ErrExcluded means that the device is not for containers in its present state. It is partitioned and offered as
	// its parts, read-only, or assigned to virtual machines. No rule overrules it.
	ErrExcluded = errors.New("not for containers")
	// ErrByName means that this kind of device is not for containers, such as the display of a management controller. A
	// rule that names exactly this device overrules it.
	ErrByName = errors.New("offered only if a rule names it")
	// ErrInUse means that this host uses the device. A pod that holds the device may cause this and the next error, so
	// the inventory ignores both during that time.
	ErrInUse = errors.New("in use")
	// ErrData means that the disk contains data. If the data is from a pod, the disk can be erased.
	ErrData = errors.New("it holds data")
	// ErrIncomplete means that nodes of the device are missing, or that its driver has not finished.
	ErrIncomplete = errors.New("not complete")
	// ErrForeign means that the content of a disk differs from what its last pod left there.
	ErrForeign = errors.New("written by others")
	// ErrUnanswered means that a helper has not answered, which is no statement about the disk.
	ErrUnanswered = errors.New("no answer")
	// ErrUnproven means that there is no evidence that the disk is unused.
	ErrUnproven = errors.New("unproven")
	// ErrPart means that the udev device belongs to a device that another udev device represents.
	ErrPart = errors.New("a part")
)

// OnlyInUse reports whether the only reason against an offer is that the device is in use or contains data.
func OnlyInUse(err error) bool {
	used := errors.Is(err, ErrInUse) || errors.Is(err, ErrData)
	return used && !unsuited(err) && !errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrGone)
}

// OnlyData reports whether the only reason against an offer is that the disk contains data. The host does not use it in
// this case.
func OnlyData(err error) bool {
	return errors.Is(err, ErrData) && OnlyInUse(err) && !errors.Is(err, ErrInUse)
}

// OnlyUnanswered reports whether the only reason against an offer is that no helper has answered about the disk.
func OnlyUnanswered(err error) bool {
	known := unsuited(err) || errors.Is(err, ErrInUse) || errors.Is(err, ErrData) || errors.Is(err, ErrGone)
	return errors.Is(err, ErrUnanswered) && !known
}

// unsuited reports whether the reason against an offer is the kind of the device, and not its state.
func unsuited(err error) bool { return errors.Is(err, ErrExcluded) || errors.Is(err, ErrByName) }

// hostUse is an [ErrInUse] for a disk that this host itself uses. It is certain if no pod can have caused it.
type hostUse struct {
	error
	certain bool
}

// Unwrap returns the reason.
func (u hostUse) Unwrap() error { return u.error }

// warning describes a problem of a usable device that the operator should handle. A [Class].Health may return it as its
// error.
type warning string

// Error returns the text.
func (w warning) Error() string { return string(w) }

func warningf(format string, args ...any) error { return warning(fmt.Sprintf(format, args...)) }

// warn adds a warning to the sighting. It ignores an empty text.
func (s *Sighting) warn(text string) {
	if text != "" && s.Warning != "" {
		s.Warning += "; "
	}
	s.Warning += text
}

// excludedf returns an [ErrExcluded] error with details.
func excludedf(format string, args ...any) error { return classified(ErrExcluded, format, args) }

// byNamef returns an [ErrByName] error with details.
func byNamef(format string, args ...any) error { return classified(ErrByName, format, args) }

// inUsef returns an [ErrInUse] error with details.
func inUsef(format string, args ...any) error { return classified(ErrInUse, format, args) }

// dataf returns an [ErrData] error with details.
func dataf(format string, args ...any) error { return classified(ErrData, format, args) }

// incompletef returns an [ErrIncomplete] error with details.
func incompletef(format string, args ...any) error { return classified(ErrIncomplete, format, args) }

func classified(kind error, format string, args []any) error {
	return fmt.Errorf("%w: %w", kind, fmt.Errorf(format, args...))
}
