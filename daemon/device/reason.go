// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// Reasons for which a class keeps a device from being offered. Each is wrapped with the particulars.
var (
	// ErrGone says that the hardware is not there any more.
	ErrGone = sysfs.ErrGone
	// ErrExcluded says that the device is not for containers in its present state. It is divided into parts that are offered
	// in its place, or read-only, or given to virtual machines. No rule overrules it.
	ErrExcluded = errors.New("not for containers")
	// ErrByName says that a device of this kind is not for containers, such as the display of a management controller. A rule
	// that names exactly this device overrules it.
	ErrByName = errors.New("only where a rule names it")
	// ErrInUse says that this host uses the device. A pod that holds the device may cause this and the next too, so the
	// inventory forgives them while one does.
	ErrInUse = errors.New("in use")
	// ErrData says that the disk holds data. If a pod has left it there, erasing is the cure.
	ErrData = errors.New("in use: it holds data")
	// ErrIncomplete says that some of the device's nodes are not there yet, or that its driver has not finished.
	ErrIncomplete = errors.New("not complete")
	// ErrForeign says that the content of a disk is not what its last pod left there.
	ErrForeign = errors.New("written by others")
	// ErrUnanswered says that a helper has not answered, which says nothing about the disk.
	ErrUnanswered = errors.New("no answer")
	// ErrUnproven says that there is no evidence that the disk is unused.
	ErrUnproven = errors.New("unproven")
	// ErrPart says that the udev device belongs to a device for which another udev device stands.
	ErrPart = errors.New("a part")
)

// OnlyInUse reports whether the only reason against an offer is that the device is in use or holds data.
func OnlyInUse(err error) bool {
	used := errors.Is(err, ErrInUse) || errors.Is(err, ErrData)
	return used && !unsuited(err) && !errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrGone)
}

// OnlyData reports whether the only reason against an offer is that the disk holds data. The host does not use it.
func OnlyData(err error) bool {
	return errors.Is(err, ErrData) && OnlyInUse(err) && !errors.Is(err, ErrInUse)
}

// OnlyUnanswered reports whether the only reason against an offer is that no helper answered what is on the disk.
func OnlyUnanswered(err error) bool {
	known := unsuited(err) || errors.Is(err, ErrInUse) || errors.Is(err, ErrData) || errors.Is(err, ErrGone)
	return errors.Is(err, ErrUnanswered) && !known
}

// unsuited reports whether a reason against an offer is the kind of the device and not its state.
func unsuited(err error) bool { return errors.Is(err, ErrExcluded) || errors.Is(err, ErrByName) }

// hostUse is [ErrInUse] for what this host does with a disk itself. It is certain where no pod can have done it.
type hostUse struct {
	error
	certain bool
}

// Unwrap returns the reason.
func (u hostUse) Unwrap() error { return u.error }

// warning is what the operator should see to with a device that is usable all the same. It is the error of a [Class].Health.
type warning string

// Error returns the text.
func (w warning) Error() string { return string(w) }

func warningf(format string, args ...any) error { return warning(fmt.Sprintf(format, args...)) }

// warn adds a warning to those that there are. An empty text is no warning.
func (s *Sighting) warn(text string) {
	if text != "" && s.Warning != "" {
		s.Warning += "; "
	}
	s.Warning += text
}

// excludedf returns an error that is [ErrExcluded] with the particulars.
func excludedf(format string, args ...any) error { return classified(ErrExcluded, format, args) }

// byNamef returns an error that is [ErrByName] with the particulars.
func byNamef(format string, args ...any) error { return classified(ErrByName, format, args) }

// inUsef returns an error that is [ErrInUse] with the particulars.
func inUsef(format string, args ...any) error { return classified(ErrInUse, format, args) }

// dataf returns an error that is [ErrData] with the particulars.
func dataf(format string, args ...any) error { return classified(ErrData, format, args) }

// incompletef returns an error that is [ErrIncomplete] with the particulars.
func incompletef(format string, args ...any) error { return classified(ErrIncomplete, format, args) }

func classified(kind error, format string, args []any) error {
	return fmt.Errorf("%w: %w", kind, fmt.Errorf(format, args...))
}
