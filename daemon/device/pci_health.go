// SPDX-License-Identifier: Apache-2.0

package device

// The health that all hardware on PCI has in common, which is whether it answers, its error counters and the width of its
// link.
//
// Follows: Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats (Linux counts, nothing is asked of the hardware);
// drivers/pci/pci-sysfs.c (current_link_width, max_link_width).
//
// A fatal error means that the link was not reliable any more and data was lost. A nonfatal one is only a warning. Nonfatal
// errors include requests that a function merely does not support. The driver can recover from the others, and the kernel
// reports it where the driver could not (mark.go). Corrected ones are normal.
//
// A link that is narrower than both of its ends allow is a warning. The contact is worn or dirty, but the link works. Its
// speed says nothing, for it goes down when there is nothing to do (ASPM).

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Attributes that count errors, as in [Counter].
const (
	FatalErrors    = "aer_dev_fatal"
	NonfatalErrors = "aer_dev_nonfatal"
)

// Counter is a count of errors that the kernel keeps for a piece of hardware from when it was found.
type Counter struct {
	SysPath string // of what it counts for
	Name    string // of the attribute
	Value   uint64
	Fatal   bool // a rise makes the hardware unhealthy, and is not only a warning
}

// Mark returns the mark for a counter that has risen since it had another value. Only a fresh start takes it back. The
// reason changes with each power of ten, so that it is no news each time.
func (c Counter) Mark(before uint64) Mark {
	least := uint64(1)
	for rise := c.Value - before; rise >= 10; rise /= 10 {
		least *= 10
	}
	kind := "nonfatal"
	if c.Fatal {
		kind = "fatal"
	}
	return Mark{
		SysPath: c.SysPath, Source: c.Name, Warning: !c.Fatal,
		Reason: fmt.Sprintf("%d or more %s PCIe errors (%s)", least, kind, c.Name),
	}
}

// functionsOf returns the sorted sysfs paths of the PCI functions by which a device is reached. They are those of a VFIO group,
// those of the controllers of a namespace, or the one above.
func functionsOf(h *Host, d Device) []string {
	var all []string
	for _, u := range d.nodes() {
		all = append(all, vfioFunctions(h, u)...)
		reach := h.NVMeControllers(u.SysPath)
		if len(reach) == 0 && u.Subsystem != "vfio" && u.Subsystem != "vfio-dev" {
			reach = []string{u.SysPath}
		}
		for _, p := range reach {
			if function := FunctionIn(p); function != "" {
				all = append(all, function)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// pciHealth checks the functions of a device. The device is unhealthy if no function answers, or if one does not that it
// needs.
func pciHealth(h *Host, s *Sighting) {
	var silent []error
	for _, function := range s.Functions {
		s.Counters = append(s.Counters, errorCounters(h, function)...)
		if err := h.Answers(function); err != nil {
			silent = append(silent, err)
		} else {
			s.warn(linkWarning(h, function))
		}
	}
	if len(silent) > 0 && (s.Device.Class.NeedsAll || len(silent) == len(s.Functions)) && s.Health == nil {
		s.Health = silent[0]
	}
}

// Answers returns why a PCI function, or for a virtual one the physical one that makes it, does not answer any more.
func (h *Host) Answers(function string) error {
	err := h.pciAnswers(function)
	if physical := h.Resolve(function + "/physfn"); err == nil && physical != "" {
		if err = h.pciAnswers(physical); err != nil {
			err = fmt.Errorf("its physical function %s: %w", path.Base(physical), err)
		}
	}
	return err
}

// errorCounters reads the counters that the kernel keeps where it handles the errors (AER), and the firmware does not. Each is
// the total among lines of "NAME COUNT". Which other names there are depends on the kernel.
func errorCounters(h *Host, function string) []Counter {
	var counters []Counter
	for _, c := range []Counter{{Name: FatalErrors, Fatal: true}, {Name: NonfatalErrors}} {
		text, _ := h.Attr(function, c.Name) // missing without AER
		for name, count := range keyed(text, " ") {
			total, err := strconv.ParseUint(count, 10, 64)
			if strings.HasPrefix(name, "TOTAL_ERR_") && err == nil {
				c.SysPath, c.Value = function, total
				counters = append(counters, c)
			}
		}
	}
	return counters
}

// widest is the most lanes that a link can have. A function that does not answer gives more, and one without a link gives 0.
const widest = 32

// linkWarning tells of a link that is narrower than both the function and the bridge above it can do. A card with lanes
// that the slot does not have is as it should be.
func linkWarning(h *Host, function string) string {
	if h.asleep(function) {
		return ""
	}
	width, most := h.Uint(function, "current_link_width"), h.Uint(function, "max_link_width")
	if width == 0 || width > widest || most > widest {
		return ""
	}
	if slot := h.Uint(path.Dir(function), "max_link_width"); slot > 0 {
		most = min(most, slot)
	}
	if width >= most {
		return ""
	}
	return fmt.Sprintf("the PCIe link of %s has %d of %d lanes", path.Base(function), width, most)
}
