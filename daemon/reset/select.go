// SPDX-License-Identifier: Apache-2.0

package reset

// The files in /etc/metalplug determine which resource a device belongs to, and how the device may be reset and erased. An
// attacker may have taken over metalplugd, so the helper does not trust its requests.

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// checkSelected returns an error if the resource of the request does not select the device, or does not name the method or the
// erasure.
func (h *host) checkSelected(r Request) error {
	settings, err := h.settings()
	if err != nil {
		return errorf(Refused, "read the configuration: %w", err)
	}
	i := slices.IndexFunc(settings.Resources, func(one config.Resource) bool { return one.Name == r.Resource })
	if i < 0 {
		return errorf(Refused, "no resource %q is configured (%s): nothing is done to %s", r.Resource, listFiles(settings), r.SysPath)
	}
	resource := settings.Resources[i]
	machine := &device.Host{Tree: h.Tree}
	seen, err := udev.ReadDevice(h.Sys, h.run, r.SysPath)
	if err != nil {
		return errorf(Refused, "cannot determine which resource selects %s: %w", r.SysPath, err)
	}
	sighting, err := sightingOf(machine, settings, resource, &seen, r.SysPath)
	if err != nil {
		return err
	}
	return cmp.Or(checkMethod(settings, resource, sighting, r), checkScrub(settings, resource, sighting, r))
}

// sightingOf returns the sighting of a device if the resource selects the device.
func sightingOf(machine *device.Host, settings config.Config, resource config.Resource, seen *udev.Device, sysPath string) (device.Sighting, error) {
	var reasons []string
	for _, s := range device.Look(machine, settings.Rules(), seen) {
		switch {
		case s.Resource == resource.Name && !errors.Is(s.Offer, device.ErrExcluded):
			return s, nil
		case s.Resource != "" && s.Resource != resource.Name:
			reasons = append(reasons, "the device belongs to "+s.Resource)
		case s.Offer != nil:
			reasons = append(reasons, s.Offer.Error())
		}
	}
	if len(reasons) == 0 {
		reasons = append(reasons, "no class matches the device")
	}
	return device.Sighting{}, errorf(Refused, "resource %s (%s) does not select %s: %s", resource.Name, locationOf(settings, resource.Name, "match"), path.Base(sysPath), strings.Join(reasons, "; "))
}

func checkMethod(settings config.Config, resource config.Resource, s device.Sighting, r Request) error {
	auto := ""
	if s.Target != nil {
		auto = s.Target.Auto
	}
	switch named := resource.Reset.Method; {
	case r.Method == "", r.Method == named, r.Method == auto && (r.ByHand || named == config.Auto):
		return nil
	default:
		return errorf(Refused, "resource %s (%s) has reset method %q, not %q", resource.Name, locationOf(settings, resource.Name, "reset.method"), named, r.Method)
	}
}

func checkScrub(settings config.Config, resource config.Resource, s device.Sighting, r Request) error {
	where := locationOf(settings, resource.Name, "reset.scrub")
	switch {
	case r.Scrub == "":
		return nil
	case !s.Target.IsDisk():
		return errorf(Refused, "resource %s (%s) does not select %s as a disk", resource.Name, where, path.Base(r.SysPath))
	case r.ByHand && (resource.AllowInUse || resource.Shares > 1):
		return errorf(Refused, "resource %s (%s) offers disks that other processes may use, so metalplug does not erase them", resource.Name, where)
	case r.Scrub == resource.Reset.Scrub, r.ByHand && r.Scrub != "sanitize": // sanitize would erase the whole NVM subsystem
		return nil
	}
	return errorf(Refused, "resource %s (%s) has scrub %q, not %q", resource.Name, where, resource.Reset.Scrub, r.Scrub)
}

// locationOf returns the file and line that set a key of a resource.
func locationOf(settings config.Config, resource, key string) string {
	return cmp.Or(settings.Where(resource, key), "built in")
}

// listFiles returns a list of the configuration files for use in a message.
func listFiles(settings config.Config) string {
	if len(settings.Files) == 0 {
		return fmt.Sprintf("%s does not exist", config.DefaultFile)
	}
	return strings.Join(settings.Files, ", ")
}
