// SPDX-License-Identifier: Apache-2.0

package reset

// Another host, or a virtual machine through a controller of its own, may use an NVMe namespace. Dual-port drives, virtual
// functions and drives over a network have namespaces that several controllers reach. The kernel here knows only its own
// controllers, so the helper asks the drive.
//
// This follows NVM Express Base Specification 2.0, Identify (NMIC, CNS 12h, CNS 13h) and Reservation Report. The block layer
// shows reservations to user space by no ioctl of Linux 6.12 (include/uapi/linux/pr.h). drivers/nvme/host/pr.c sends the same
// command.

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// shared returns [Busy] if an NVMe drive reports that another host or a virtual machine has the disk of a claim, or if the
// drive does not report it. It returns nil for a disk that is not NVMe.
func (c *claim) shared() error {
	if !c.IsNVMe(c.sysPath) {
		return nil
	}
	d := drive{c}
	ns, err := d.namespace()
	if err == nil {
		err = cmp.Or(d.attachedElsewhere(ns), d.reserved(ns))
	}
	if err == nil || errors.Is(err, Busy) || resultOf(err) == Gone {
		return err
	}
	return errorf(Busy, "whether another host uses %s cannot be told: %w", c.Name(), err)
}

// attachedElsewhere returns [Busy] if a controller that is not one of this kernel has the namespace attached.
func (d drive) attachedElsewhere(ns namespace) error {
	if !ns.shared {
		return nil
	}
	list, err := d.identify(cnsAttachedControllers, ns.nsid)
	if unsupported(statusOf(err)) {
		// A drive without Namespace Management need not know. Then all controllers that there are have to be here.
		return d.allOurs()
	} else if err != nil {
		return err
	}
	strange, err := d.strangers(list)
	if err == nil && len(strange) > 0 {
		err = errorf(Busy, "%s is shared: controller %s, which the driver nvme does not have here, has namespace %d too; detach it there",
			d.Name(), strings.Join(strange, ", "), ns.nsid)
	}
	return err
}

// strangers returns the IDs in a Controller List that are not those of controllers here. The list has their number and
// then their IDs, 16 bits each (Base Specification, Controller List).
func (d drive) strangers(list []byte) (strange []string, err error) {
	seen, err := d.ownIDs()
	if err != nil {
		return nil, err
	}
	const most = identifySize/2 - 1
	for i := range min(int(binary.LittleEndian.Uint16(list)), most) {
		cntlid := strconv.Itoa(int(binary.LittleEndian.Uint16(list[2+2*i:])))
		if !slices.Contains(seen, cntlid) {
			strange = append(strange, cntlid)
		}
	}
	return strange, nil
}

// ownIDs returns the IDs by which a drive calls the controllers here.
func (d drive) ownIDs() (ids []string, err error) {
	controllers, err := d.controllersOf(d.sysPath)
	if err != nil {
		return nil, err
	}
	for _, one := range d.NVMeSiblings(controllers[0]) {
		id, err := d.Attr(one, "cntlid")
		if err != nil {
			return nil, errorf(Busy, "the ID of controller %s is not known: %w", path.Base(one), err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// Reservation Report, an I/O command, and what it returns (NVM Express Base Specification 2.0, Reservation Status data
// structure). The extended structure has host identifiers of 16 bytes in the place of 8.
const (
	opReservationReport = 0x0e
	extendedStatus      = 1  // EDS, bit 0 of dword 11
	plainEntry          = 24 // bytes of an entry, and of what is before the first
	extendedEntry       = 64
)

// reserved returns [Busy] if another host is registered with a namespace, or holds a reservation on it.
func (d drive) reserved(ns namespace) error {
	id, err := d.controllerOf()
	if err != nil || !id.has(reserves) {
		return err
	}
	report, entry, err := d.reservations(ns.nsid)
	switch code := statusOf(err); {
	case code == statusSanitizeInProgress, code == statusSanitizeFailed:
		return nil // no host reaches the data, and reservations were asked for before the sanitize began
	case unsupported(code) && !ns.reservable:
		return nil
	case err != nil:
		return err
	}
	strange, err := d.registrants(report, entry)
	switch {
	case err != nil:
		return err
	case len(strange) > 0:
		return errorf(Busy, "%s is reserved: %s registered with namespace %d; release it there", d.Name(), strings.Join(strange, ", "), ns.nsid)
	}
	return nil
}

// reservations asks for the report in the format that fits the host identifier, as nvme_pr_resv_report does.
func (d drive) reservations(nsid uint32) (report []byte, entry int, err error) {
	for _, eds := range []uint32{extendedStatus, 0} {
		report = make([]byte, identifySize)
		if entry = plainEntry; eds == extendedStatus {
			entry = extendedEntry
		}
		command := adminCommand{opcode: opReservationReport, nsid: nsid, cdw10: identifySize/4 - 1, cdw11: eds}
		err = d.command(nvmeIoctlIOCmd, command, shortly, report)
		if code := statusOf(err); code != statusHostIDFormat && code != statusInvalidField {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("reservation report: %w", err)
	}
	return report, entry, err
}

// registrants returns those of a report that are not controllers here, in words. More than fit are strangers.
func (d drive) registrants(report []byte, size int) (strange []string, err error) {
	seen, err := d.ownIDs()
	if err != nil {
		return nil, err
	}
	count := int(binary.LittleEndian.Uint16(report[5:]))
	fit := len(report)/size - 1
	for i := range min(count, fit) {
		entry := report[(i+1)*size:]
		cntlid := strconv.Itoa(int(binary.LittleEndian.Uint16(entry)))
		if slices.Contains(seen, cntlid) {
			continue
		}
		state := "is"
		if entry[2]&1 != 0 {
			state = "holds a reservation and is"
		}
		strange = append(strange, "controller "+cntlid+" "+state)
	}
	if count > fit {
		strange = append(strange, fmt.Sprintf("%d more controllers are", count-fit))
	}
	if kind := report[4]; kind != 0 && count == 0 {
		strange = append(strange, fmt.Sprintf("the holder of a reservation of type %d is", kind))
	}
	return strange, nil
}
