// SPDX-License-Identifier: Apache-2.0

package reset

// Another host or a virtual machine may use an NVMe namespace through its own controller. If a drive has two ports or virtual
// functions, or is on a network, several controllers can access its namespaces. This node's kernel knows only the controllers
// that it manages itself, so the helper asks the drive about all other controllers.
//
// The sources are Identify (NMIC, CNS 12h, CNS 13h) and Reservation Report in the NVM Express Base Specification 2.0. In Linux
// 6.12, the block layer has no ioctl that returns reservations (include/uapi/linux/pr.h). drivers/nvme/host/pr.c sends the same
// command as this file.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// checkNotShared returns [Busy] if an NVMe drive reports that another host or a virtual machine is using the disk. checkNotShared
// also returns [Busy] if the drive does not answer. checkNotShared returns nil for any other kind of disk.
func (f *diskFile) checkNotShared() error {
	if !f.IsNVMe(f.sysPath) {
		return nil
	}
	d := drive{f}
	ns, err := d.namespace()
	if err == nil {
		err = d.checkAttachments(ns)
	}
	if err == nil {
		err = d.checkReservations(ns)
	}
	if err == nil || errors.Is(err, Busy) || resultOf(err) == Gone {
		return err
	}
	return errorf(Busy, "cannot determine whether another host uses %s: %w", f.Name(), err)
}

// checkAttachments returns [Busy] if the namespace is attached to a controller that this node's kernel does not manage.
func (d drive) checkAttachments(ns namespace) error {
	if !ns.shared {
		return nil
	}
	list, err := d.identify(cnsAttachedControllers, ns.nsid)
	if isUnsupported(statusOf(err)) {
		// A drive without Namespace Management may not support this query. In that case, all of the drive's controllers must belong to
		// this kernel.
		return d.checkControllers()
	} else if err != nil {
		return err
	}
	foreign, err := d.foreignControllers(listedControllers(list))
	if err == nil && len(foreign) > 0 {
		err = errorf(Busy, "%s is shared: controller %s, which is not bound to this host's driver nvme, also has namespace %d; detach it there",
			d.Name(), strings.Join(foreign, ", "), ns.nsid)
	}
	return err
}

// listedControllers returns the IDs in a Controller List. The list consists of a count followed by the IDs, with 16 bits each
// (Base Specification, Controller List).
func listedControllers(list []byte) (ids []uint16) {
	const most = identifySize/2 - 1
	for i := range min(int(binary.LittleEndian.Uint16(list)), most) {
		ids = append(ids, binary.LittleEndian.Uint16(list[2+2*i:]))
	}
	return ids
}

// foreignControllers returns the given controller IDs without the IDs of the controllers that this node's kernel manages.
func (d drive) foreignControllers(ids []uint16) (foreign []string, err error) {
	controllers, err := d.controllersOf(d.sysPath)
	if err != nil {
		return nil, err
	}
	var own []string
	for _, one := range d.NVMeSiblings(controllers[0]) {
		id, err := d.Attr(one, "cntlid")
		if err != nil {
			return nil, errorf(Busy, "the ID of controller %s is not known: %w", path.Base(one), err)
		}
		own = append(own, id)
	}
	for _, id := range ids {
		if text := strconv.Itoa(int(id)); !slices.Contains(own, text) {
			foreign = append(foreign, text)
		}
	}
	return foreign, nil
}

// Reservation Report is an I/O command. This command returns the Reservation Status data structure (NVM Express Base
// Specification 2.0). In the extended structure, host identifiers have 16 bytes instead of 8.
const (
	opReservationReport = 0x0e
	extendedStatus      = 1  // EDS, bit 0 of dword 11
	plainEntry          = 24 // size of an entry, and of the header before the first entry, in bytes
	extendedEntry       = 64
)

// checkReservations returns [Busy] if another host is registered with the namespace, or has reserved the namespace.
func (d drive) checkReservations(ns namespace) error {
	id, err := d.controllerOf()
	if err != nil || !id.has(reserves) {
		return err
	}
	report, entry, err := d.reservations(ns.nsid)
	switch code := statusOf(err); {
	case code == statusSanitizeInProgress, code == statusSanitizeFailed:
		return nil // in this state, no host can read the data, and the reservations were checked beforehand
	case isUnsupported(code) && !ns.reservable:
		return nil
	case err != nil:
		return err
	}
	foreign, err := d.foreignRegistrants(report, entry)
	if err == nil && len(foreign) > 0 {
		err = errorf(Busy, "%s is reserved: other hosts are registered with namespace %d (controllers: %s); release it there", d.Name(), ns.nsid, strings.Join(foreign, ", "))
	}
	return err
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

// foreignRegistrants returns the IDs of the registrants in a report, except this node's controllers. If the report does not have
// room for all registrants, the last element states how many are missing.
func (d drive) foreignRegistrants(report []byte, size int) (foreign []string, err error) {
	count, fit := int(binary.LittleEndian.Uint16(report[5:])), len(report)/size-1
	var ids []uint16
	for i := range min(count, fit) {
		ids = append(ids, binary.LittleEndian.Uint16(report[(i+1)*size:]))
	}
	foreign, err = d.foreignControllers(ids)
	switch kind := report[4]; {
	case err != nil:
		return nil, err
	case count > fit:
		foreign = append(foreign, fmt.Sprintf("%d that are not listed", count-fit))
	case count == 0 && kind != 0:
		foreign = append(foreign, fmt.Sprintf("unknown, with a reservation of type %d", kind))
	}
	return foreign, nil
}
