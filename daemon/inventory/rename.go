// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// renameLimit is how long udev may take to report a name that the kernel has given a device. In between the old path is gone.
// It took 300 ms in an emulated machine.
const renameLimit = 2 * time.Second

// renamed moves a subject to the path that its device has now ("move" of device_rename in drivers/base/core.c). The device is
// the same, and its tenant keeps it.
func (l *loop) renamed(d udev.Device) {
	old := "/sys" + d.Properties.Value("DEVPATH_OLD")
	s := l.subjects.at(old)
	if s == nil || l.subjects.at(d.SysPath) != nil {
		return
	}
	l.subjects.remove(old)
	s.udev, s.vanished = &d, time.Time{}
	l.subjects.insert(s)
}

// astray reports whether a look at a path has no news of a subject. The subject has another path since, or may have one that
// udev will report. The sightings from before apply until then.
func (l *loop) astray(s *subject, at string, sightings []device.Sighting) bool {
	switch {
	case at != s.udev.SysPath:
		l.look(s)
	case !vanished(sightings) || s.left || s.class() == nil || !s.class().Renamed:
		s.vanished, s.left = time.Time{}, false
		return false
	case s.vanished.IsZero():
		s.vanished = time.Now()
		time.AfterFunc(renameLimit, func() { l.post(func(l *loop) { l.look(s) }) })
	case time.Since(s.vanished) >= renameLimit:
		return false
	}
	s.again = false // the next look is one to come
	return true
}

// vanished reports whether a look found nothing at a path, or the device went during the look.
func vanished(sightings []device.Sighting) bool {
	return len(sightings) == 0 || slices.ContainsFunc(sightings, func(s device.Sighting) bool {
		return errors.Is(s.Offer, device.ErrGone) || errors.Is(s.Health, device.ErrGone)
	})
}
