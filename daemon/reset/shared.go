// SPDX-License-Identifier: Apache-2.0

package reset

// Another host or a virtual machine may use an NVMe namespace through its own controller. Several controllers can access the
// namespaces of a dual-port drive, a drive with virtual functions, or a drive on a network. This kernel knows only its own
// controllers, so the helper asks the drive about the others.
//
// The sources are Identify (NMIC, CNS 12h, CNS 13h) and Reservation Report in the NVM Express Base Specification 2.0. In Linux
// 6.12, the block layer has no ioctl that returns reservations (include/uapi/linux/pr.h). drivers/nvme/host/pr.c sends the same
// command as this file.

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

// checkNotShared returns [Busy] if an NVMe drive reports that another host or a virtual machine uses the disk. It also returns
// [Busy] if the drive does not answer this question. It returns nil for any other kind of disk.
func (c *claim) checkNotShared() error {
	if !c.IsNVMe(c.sysPath) {
		return nil
	}
	d := drive{c}
	ns, err := d.namespace()
	if err == nil {
		err = cmp.Or(d.checkAttachments(ns), d.checkReservations(ns))
	}
	if err == nil || errors.Is(err, Busy) || resultOf(err) == Gone {
		return err
	}
	return errorf(Busy, "cannot determine whether another host uses %s: %w", c.Name(), err)
}

// checkAttachments returns [Busy] if the namespace is attached to a controller that this kernel does not drive.
func (d drive) checkAttachments(ns namespace) error {
	if !ns.shared {
		return nil
	}
	list, err := d.identify(cnsAttachedControllers, ns.nsid)
	if unsupported(statusOf(err)) {
		// A drive without Namespace Management may not support this query. In that case, all controllers of the drive must belong
		// to this kernel.
		return d.checkControllers()
	} else if err != nil {
		return err
	}
	strange, err := d.foreignControllers(list)
	if err == nil && len(strange) > 0 {
		err = errorf(Busy, "%s is shared: controller %s, which is not bound to this host's driver nvme, also has namespace %d; detach it there",
			d.Name(), strings.Join(strange, ", "), ns.nsid)
	}
	return err
}

// foreignControllers returns those IDs in a Controller List that do not belong to a controller of this kernel. The list consists
// of a count, followed by the IDs, with 16 bits each (Base Specification, Controller List).
func (d drive) foreignControllers(list []byte) (strange []string, err error) {
	seen, err := d.controllerIDs()
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

// controllerIDs returns the IDs that the drive has assigned to the controllers of this kernel.
func (d drive) controllerIDs() (ids []string, err error) {
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

// Reservation Report is an I/O command. It returns the Reservation Status data structure (NVM Express Base Specification 2.0). In
// the extended structure, host identifiers have 16 bytes instead of 8.
const (
	opReservationReport = 0x0e
	extendedStatus      = 1  // EDS, bit 0 of dword 11
	plainEntry          = 24 // size of an entry, and of the header before the first entry, in bytes
	extendedEntry       = 64
)

// checkReservations returns [Busy] if another host is registered with the namespace, or has reserved it.
func (d drive) checkReservations(ns namespace) error {
	id, err := d.controllerOf()
	if err != nil || !id.has(reserves) {
		return err
	}
	report, entry, err := d.reservations(ns.nsid)
	switch code := statusOf(err); {
	case code == statusSanitizeInProgress, code == statusSanitizeFailed:
		return nil // in this state, no host can read the data, and the reservations were checked beforehand
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

// reservations requests the Reservation Report. Like nvme_pr_resv_report, it uses the format that matches the size of the
// host identifier.
func (d drive) reservations(nsid uint32) (report []byte, entry int, err error) {
	for _, eds := range []uint32{extendedStatus, 0} {
		report = make([]byte, identifySize)
		if entry = plainEntry; eds == extendedStatus {
			entry = extendedEntry
		}
		command := adminCommand{opcode: opReservationReport, nsid: nsid, cdw10: identifySize/4 - 1, cdw11: eds}
		err = d.command(nvmeIoctlIOCmd, command, queryTimeout, report)
		if code := statusOf(err); code != statusHostIDFormat && code != statusInvalidField {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("reservation report: %w", err)
	}
	return report, entry, err
}

// registrants describes the registrants in a report, except the controllers of this kernel. It also mentions registrants that do
// not fit into the report.
func (d drive) registrants(report []byte, size int) (strange []string, err error) {
	seen, err := d.controllerIDs()
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
