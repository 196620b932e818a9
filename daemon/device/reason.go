// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// Reasons why a class does not offer a device. The returned errors wrap one of these reasons and add details.
var (
	// ErrGone means that the hardware is no longer present.
	ErrGone = sysfs.ErrGone
	// ErrExcluded means that containers must not get the device in its current state. For example, the device is read-only or
	// assigned to virtual machines, or its parts are offered instead. A rule cannot overrule this reason.
	ErrExcluded = errors.New("not for containers")
	// ErrByName means that containers do not need this kind of device, such as the display adapter of a management controller. A
	// rule that names the device exactly overrules this reason.
	ErrByName = errors.New("offered only if a rule names it")
	// ErrInUse means that this host uses the device. While a pod holds the device, the inventory ignores ErrInUse and [ErrData],
	// because the pod may have caused them.
	ErrInUse = errors.New("in use")
	// ErrData means that the disk contains data. If a pod left this data, the disk can be erased.
	ErrData = errors.New("not empty")
	// ErrIncomplete means that nodes of the device are missing, or that its driver has not finished setting it up.
	ErrIncomplete = errors.New("not complete")
	// ErrForeign means that the disk no longer contains exactly the data that its last pod left.
	ErrForeign = errors.New("written by others")
	// ErrUnanswered means that a helper has not answered, so the disk's state is unknown.
	ErrUnanswered = errors.New("no answer")
	// ErrUnproven means that there is no evidence that the disk is unused.
	ErrUnproven = errors.New("unproven")
	// ErrPart means that the udev device is a part of a device that another udev device represents.
	ErrPart = errors.New("a part")
)

// OnlyInUse reports whether a device is not offered only because it is in use or contains data.
func OnlyInUse(err error) bool {
	used := errors.Is(err, ErrInUse) || errors.Is(err, ErrData)
	return used && !isUnsuited(err) && !errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrGone)
}

// OnlyData reports whether a disk is not offered only because it contains data. In that case, the host does not use the disk.
func OnlyData(err error) bool {
	return errors.Is(err, ErrData) && OnlyInUse(err) && !errors.Is(err, ErrInUse)
}

// OnlyUnanswered reports whether a disk is not offered only because a helper has not answered.
func OnlyUnanswered(err error) bool {
	known := isUnsuited(err) || errors.Is(err, ErrInUse) || errors.Is(err, ErrData) || errors.Is(err, ErrGone)
	return errors.Is(err, ErrUnanswered) && !known
}

// isUnsuited reports whether the device is not offered because of its kind rather than its state.
func isUnsuited(err error) bool {
	return errors.Is(err, ErrExcluded) || errors.Is(err, ErrTwin) || errors.Is(err, ErrByName)
}

// warn adds a warning to the sighting. warn ignores an empty text.
func (s *Sighting) warn(text string) {
	if text != "" && s.Warning != "" {
		s.Warning += "; "
	}
	s.Warning += text
}

// excludedf returns an [ErrExcluded] error with details.
func excludedf(format string, args ...any) error { return classifyError(ErrExcluded, format, args) }

// byNamef returns an [ErrByName] error with details.
func byNamef(format string, args ...any) error { return classifyError(ErrByName, format, args) }

// inUsef returns an [ErrInUse] error with details.
func inUsef(format string, args ...any) error { return classifyError(ErrInUse, format, args) }

// dataf returns an [ErrData] error with details.
func dataf(format string, args ...any) error { return classifyError(ErrData, format, args) }

// incompletef returns an [ErrIncomplete] error with details.
func incompletef(format string, args ...any) error { return classifyError(ErrIncomplete, format, args) }

func classifyError(kind error, format string, args []any) error {
	return fmt.Errorf("%w: %w", kind, fmt.Errorf(format, args...))
}
