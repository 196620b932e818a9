// SPDX-License-Identifier: Apache-2.0

package reset

// The files in /etc/metalplug determine which resource a device belongs to, and how the device may be reset and erased. The
// helper reads these files itself, because an attacker may have taken over metalplugd and could send false requests.

import (
	"cmp"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// checkSelected returns an error if the request's resource does not select the device, or does not name the reset or erase
// method.
func (h *host) checkSelected(r Request) error {
	settings, err := h.settings()
	if err != nil {
		return errorf(Refused, "read the configuration: %w", err)
	}
	resource, ok := settings.Resource(r.Resource)
	if !ok {
		files := cmp.Or(strings.Join(settings.Files, ", "), config.DefaultFile+" does not exist")
		return errorf(Refused, "no resource %q is configured (%s): nothing is done to %s", r.Resource, files, r.SysPath)
	}
	machine := &device.Host{Tree: h.Tree}
	seen, err := udev.ReadDevice(h.Sys, h.run, r.SysPath)
	if err != nil {
		return errorf(Refused, "cannot determine which resource selects %s: %w", r.SysPath, err)
	}
	sighting, err := sightingOf(machine, settings, resource, &seen, r.SysPath)
	if err != nil {
		return err
	}
	if err := checkMethod(settings, resource, sighting, r); err != nil {
		return err
	}
	if err := checkScrub(settings, resource, sighting, r); err != nil {
		return err
	}
	return h.checkTwins(machine, settings, sighting)
}

// checkTwins returns an error if another disk has the same ID, or if another disk's ID cannot be read. The ID may come from
// udev's database, and the sysfs attributes may not show that the two are the same disk. The kernel shows the use of each one
// separately. If sysfs does show the other disk, the helper opens both exclusively.
func (h *host) checkTwins(machine *device.Host, settings config.Config, s device.Sighting) (err error) {
	if !s.Target.IsDisk() {
		return nil
	}
	for _, name := range h.Recording(&err).Names("/sys/block") {
		sysPath := h.Resolve("/sys/block/" + name)
		other, failed := udev.ReadDevice(h.Sys, h.run, sysPath)
		if failed != nil && h.Present(sysPath) { // otherwise, the disk has disappeared
			err = errorf(Busy, "cannot determine whether %s is another disk: %w", name, failed)
		}
		for _, o := range device.Inspect(machine, settings.Rules(), &other) {
			if o.Device.ID == s.Device.ID && sysPath != s.Device.SysPath && !slices.Contains(h.DiskAt(s.Device.SysPath).Twins, sysPath) {
				return errorf(Refused, "%s has the same identity as %s: two paths to one disk, or a copy", name, path.Base(s.Device.SysPath))
			}
		}
	}
	return err
}

// sightingOf returns the sighting of a device if the resource selects the device.
func sightingOf(machine *device.Host, settings config.Config, resource config.Resource, seen *udev.Device, sysPath string) (device.Sighting, error) {
	var reasons []string
	for _, s := range device.Inspect(machine, settings.Rules(), seen) {
		switch {
		case s.Resource == resource.Name && !errors.Is(s.Offer, device.ErrExcluded):
			return s, nil
		case s.Resource != "" && s.Resource != resource.Name:
			reasons = append(reasons, "the device belongs to "+s.Resource)
		case s.Offer != nil:
			reasons = append(reasons, s.Offer.Error())
		}
	}
	return device.Sighting{}, errorf(Refused, "resource %s (%s) does not select %s: %s", resource.Name, locationOf(settings, resource.Name, "match"), path.Base(sysPath), cmp.Or(strings.Join(reasons, "; "), "no class matches the device"))
}

func checkMethod(settings config.Config, resource config.Resource, s device.Sighting, r Request) error {
	named, auto := resource.Reset.Method, cmp.Or(s.Target, &device.Target{}).Auto
	if r.Method == "" || r.Method == named || r.Method == auto && (r.ByHand || named == config.Auto) {
		return nil
	}
	return errorf(Refused, "resource %s (%s) has reset method %q, not %q", resource.Name, locationOf(settings, resource.Name, "reset.method"), named, r.Method)
}

func checkScrub(settings config.Config, resource config.Resource, s device.Sighting, r Request) error {
	where := locationOf(settings, resource.Name, "reset.scrub")
	switch {
	case r.Scrub == "":
		return nil
	case !s.Target.IsDisk():
		return errorf(Refused, "resource %s (%s) does not select %s as a disk", resource.Name, where, path.Base(r.SysPath))
	case r.ByHand && resource.SharesUse():
		return errorf(Refused, "resource %s (%s) offers disks that other processes may use, so metalplug does not erase them", resource.Name, where)
	case r.Scrub == resource.Reset.Scrub, r.ByHand && r.Scrub != "sanitize": // sanitize would erase the whole NVM subsystem
		return nil
	}
	return errorf(Refused, "resource %s (%s) has scrub %q, not %q", resource.Name, where, resource.Reset.Scrub, r.Scrub)
}

// locationOf returns the file and line that set one of a resource's keys.
func locationOf(settings config.Config, resource, key string) string {
	return cmp.Or(settings.Where(resource, key), "built in")
}
