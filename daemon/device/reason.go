// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// Reasons why a class does not offer a device. An error wraps one of them and adds details.
var (
	// ErrGone means that the hardware is no longer present.
	ErrGone = sysfs.ErrGone
	// ErrExcluded means that containers must not get the device in its present state. For example, the device is read-only,
	// assigned to virtual machines, or partitioned, so that its parts are offered instead. A rule cannot overrule this
	// reason.
	ErrExcluded = errors.New("not for containers")
	// ErrByName means that containers do not need this kind of device, such as the display of a management controller. A
	// rule that names exactly this device overrules this reason.
	ErrByName = errors.New("offered only if a rule names it")
	// ErrInUse means that this host uses the device. While a pod holds the device, the inventory ignores this error and
	// [ErrData], because the pod may cause them.
	ErrInUse = errors.New("in use")
	// ErrData means that the disk contains data. If the data is from a pod, the disk can be erased.
	ErrData = errors.New("it holds data")
	// ErrIncomplete means that nodes of the device are missing, or that its driver has not finished its setup.
	ErrIncomplete = errors.New("not complete")
	// ErrForeign means that the content of a disk differs from what the last pod left on the disk.
	ErrForeign = errors.New("written by others")
	// ErrUnanswered means that a helper has not answered, so the state of the disk is unknown.
	ErrUnanswered = errors.New("no answer")
	// ErrUnproven means that there is no evidence that the disk is unused.
	ErrUnproven = errors.New("unproven")
	// ErrPart means that the udev device is a part of a device that another udev device represents.
	ErrPart = errors.New("a part")
)

// OnlyInUse reports whether the device is not offered only because it is in use or contains data.
func OnlyInUse(err error) bool {
	used := errors.Is(err, ErrInUse) || errors.Is(err, ErrData)
	return used && !unsuited(err) && !errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrGone)
}

// OnlyData reports whether the disk is not offered only because it contains data. The host does not use such a disk.
func OnlyData(err error) bool {
	return errors.Is(err, ErrData) && OnlyInUse(err) && !errors.Is(err, ErrInUse)
}

// OnlyUnanswered reports whether the disk is not offered only because no helper has answered about it.
func OnlyUnanswered(err error) bool {
	known := unsuited(err) || errors.Is(err, ErrInUse) || errors.Is(err, ErrData) || errors.Is(err, ErrGone)
	return errors.Is(err, ErrUnanswered) && !known
}

// unsuited reports whether the device is not offered because of its kind, and not because of its state.
func unsuited(err error) bool { return errors.Is(err, ErrExcluded) || errors.Is(err, ErrByName) }

// hostUse is an [ErrInUse] error for a disk that this host itself uses. certain means that no pod can have caused the use.
type hostUse struct {
	error
	certain bool
}

// Unwrap returns the reason.
func (u hostUse) Unwrap() error { return u.error }

// warning describes a problem with a usable device that the operator should handle. A [Class].Health function may return it
// as its error.
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
