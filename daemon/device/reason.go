// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// Reasons for which a class keeps a device from being offered. Each is wrapped with the particulars.
var (
	// ErrGone: the hardware is not there any more.
	ErrGone = sysfs.ErrGone
	// ErrExcluded: not a device for containers as it is: divided into parts that are offered in its place, read-only,
	// given to virtual machines. No rule overrules it.
	ErrExcluded = errors.New("not for containers")
	// ErrByName: not a device for containers by its kind, such as the display of a management controller. A rule that
	// names just it means it.
	ErrByName = errors.New("only where a rule names it")
	// ErrInUse: this host uses the device. A pod that holds the device may cause this and the next too, so the inventory
	// forgives them while one does.
	ErrInUse = errors.New("in use")
	// ErrData: something is on the disk. If a pod has left it there, erasing is the cure.
	ErrData = errors.New("in use: it holds data")
	// ErrIncomplete: some of the device's nodes are not there yet, or its driver has not finished.
	ErrIncomplete = errors.New("not complete")
	// ErrForeign: what is on a disk is not what its last pod has left there.
	ErrForeign = errors.New("written by others")
	// ErrUnanswered: who was asked about a disk has not answered, which says nothing of the disk.
	ErrUnanswered = errors.New("no answer")
	// ErrUnproven: there is no evidence that the disk holds nothing of anybody's.
	ErrUnproven = errors.New("unproven")
	// ErrPart: it belongs to a device for which another udev device stands.
	ErrPart = errors.New("a part")
)

// OnlyInUse tells whether a reason against an offer is that the device is in use or holds data, and no other.
func OnlyInUse(err error) bool {
	used := errors.Is(err, ErrInUse) || errors.Is(err, ErrData)
	return used && !unsuited(err) && !errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrGone)
}

// OnlyData tells whether a reason against an offer is that something is on the disk, and no other: nobody uses it.
func OnlyData(err error) bool {
	return errors.Is(err, ErrData) && OnlyInUse(err) && !errors.Is(err, ErrInUse)
}

// OnlyUnanswered tells whether all that stands against an offer is that nobody could tell what is on the disk.
func OnlyUnanswered(err error) bool {
	known := unsuited(err) || errors.Is(err, ErrInUse) || errors.Is(err, ErrData) || errors.Is(err, ErrGone)
	return errors.Is(err, ErrUnanswered) && !known
}

// unsuited tells whether a reason against an offer is what the device is, and not how it stands at present.
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
