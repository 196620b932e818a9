// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// Secure Erase Settings of Format NVM, bits 11:9 of dword 10 (Base Specification, figure 190).
const (
	eraseUserData = 1
	eraseCrypto   = 2
)

// formatBy returns the erasure that runs Format NVM with the given Secure Erase Settings.
func formatBy(ses uint32) erasure {
	return erasure{
		promise: mustChange,
		ready:   func(f *diskFile) error { return drive{f}.checkFormat(ses) },
		run:     func(_ context.Context, f *diskFile, _ *verification) (string, error) { return drive{f}.format(ses) },
	}
}

// format erases one namespace by formatting it with its current format. During the command, the kernel stops I/O to all of the
// controller's namespaces. The command cannot be interrupted (nvme_passthru_start). It takes seconds, or minutes if the drive
// really erases its cells.
func (d drive) format(ses uint32) (string, error) {
	ns, err := d.namespace()
	if err != nil {
		return "", err
	}
	d.step.set("formatting %s", d.Name())
	word := formatWord(ns, ses)
	if err := d.command(nvmeIoctlAdminCmd, adminCommand{opcode: opFormatNVM, nsid: ns.nsid, cdw10: word}, formatTime, nil); err != nil {
		return "", commandError("format "+d.Name(), err)
	}
	return fmt.Sprintf("formatted namespace %d, SES %d, LBA format %d kept", ns.nsid, ses, formatOf(ns)), nil
}

// checkFormat checks that the controller can format this namespace without changing other namespaces.
func (d drive) checkFormat(ses uint32) error {
	id, err := d.localController()
	switch {
	case err != nil:
		return err
	case !id.has(canFormat):
		return errorf(Unsupported, "the controller of %s has no Format command (OACS bit 1)", d.Name())
	case ses == eraseCrypto && !id.has(cryptoFormat):
		return errorf(Unsupported, "the controller of %s has no cryptographic erasure (FNA bit 2)", d.Name())
	case id.has(formatHitsAll):
		return d.checkSoleNamespace(id)
	}
	return nil
}

// formatWord returns dword 10 of a Format command that keeps the current format. FLBAS and DPS contain the current LBA format,
// the location of the metadata, and the protection information. If dword 10 were 0, the command could change the block size.
func formatWord(ns namespace, ses uint32) uint32 {
	format := formatOf(ns)
	metadata := uint32(ns.flbas >> 4 & 1) // FLBAS bit 4 becomes MSET
	protection := uint32(ns.dps & 7)      // DPS bits 2:0 become PI
	first := uint32(ns.dps >> 3 & 1)      // DPS bit 3 becomes PIL
	return format&0xf | metadata<<4 | protection<<5 | first<<8 | ses<<9 | format>>4<<12
}

// formatOf returns the number of the current LBA format. FLBAS bits 3:0 are its low bits, and bits 6:5 are its high bits.
func formatOf(ns namespace) uint32 { return uint32(ns.flbas&0xf) | uint32(ns.flbas>>5&3)<<4 }

// checkSize checks that a disk's size and block size have not changed since the disk was opened.
func (f *diskFile) checkSize() error {
	if size, block := f.sizes(); size != f.size || block != f.block {
		return errorf(Failed, "the size of %s was %d bytes (blocks of %d), and is now %d bytes (blocks of %d)", f.Name(), f.size, f.block, size, block)
	}
	return nil
}

// localNVMe returns the controllers of an NVMe namespace. If one of them is connected over a network, localNVMe returns an error,
// because other hosts may use the same drive.
func (h *host) localNVMe(sysPath string) (controllers []string, err error) {
	controllers, err = h.controllersOf(sysPath)
	if err != nil {
		return nil, err
	}
	for _, c := range controllers {
		if transport, _ := h.Attr(c, "transport"); transport != "pcie" {
			return nil, errorf(Refused, "%s has transport %q, not pcie", sysPath, transport)
		}
	}
	return controllers, nil
}

// localController returns the data from Identify Controller for an open disk. localController returns an error if the drive is
// connected over a network.
func (d drive) localController() (controller, error) {
	if _, err := d.localNVMe(d.sysPath); err != nil {
		return nil, err
	}
	return d.controllerOf()
}

// checkSoleNamespace returns an error if the disk is not the only namespace in the NVM subsystem. checkSoleNamespace is called
// before a command that erases the whole subsystem.
func (d drive) checkSoleNamespace(id controller) error {
	controllers, err := d.controllersOf(d.sysPath)
	if err != nil {
		return err
	}
	own := d.NVMeSiblings(controllers[0])
	disks, err := d.namespacesOf(own)
	if err != nil {
		return err
	}
	for _, disk := range disks {
		if disk != d.sysPath && !slices.Contains(d.Twins, disk) {
			return errorf(Refused, "%s would be erased too; erase %s alone with scrub = \"zero\"", path.Base(disk), d.Name())
		}
	}
	if err := d.checkControllers(); err != nil {
		return err
	}
	return d.checkOtherNamespaces(id)
}

// checkControllers checks that this node's kernel manages all controllers in the NVM subsystem. A virtual machine may use a
// controller through VFIO. Another host may use a controller at the drive's other port. Such a controller can have namespaces
// that this node's kernel does not know.
func (d drive) checkControllers() error {
	id, err := d.controllerOf()
	if err != nil || !id.has(severalControllers) {
		return err
	}
	list, err := d.identify(cnsControllers, 0)
	if err != nil {
		return errorf(Refused, "cannot determine whether other hosts use a controller of the NVM subsystem: %w", err)
	}
	foreign, err := d.foreignControllers(listedControllers(list))
	if err != nil {
		return err
	}
	if len(foreign) > 0 {
		return errorf(Refused, "controller %s of the NVM subsystem is not bound to this host's driver nvme: its users would be affected too",
			strings.Join(foreign, ", "))
	}
	return nil
}

// checkOtherNamespaces checks that the drive has no other namespace. checkOtherNamespaces also finds namespaces that are attached
// only to another controller, or to no controller. If the drive does not support Namespace Management, every namespace is
// attached to a controller.
func (d drive) checkOtherNamespaces(id controller) error {
	cns := uint32(cnsActiveNamespaces)
	if id.has(managesNS) {
		cns = cnsNamespaces
	}
	own, err := d.namespace()
	if err != nil {
		return err
	}
	list, err := d.identify(cns, 0)
	if err != nil {
		return commandError("list the namespaces", err)
	}
	for b := range slices.Chunk(list, 4) {
		if nsid := binary.LittleEndian.Uint32(b); nsid != 0 && nsid != own.nsid {
			return errorf(Refused, "namespace %d would be erased too; erase %s alone with scrub = \"zero\"", nsid, d.Name())
		}
	}
	return nil
}

// During a sanitize operation, the controller erases the whole NVM subsystem in the background, including all namespaces, caches
// and spare blocks. Neither a reset nor a loss of power stops a sanitize operation. Until the operation ends, no namespace can be
// read (NVMe Base Specification 2.0, 8.21). A cryptographic erasure takes seconds. Overwriting the drive takes up to a day.

// sanitizeState contains the fields of the Sanitize Status log page (Base Specification, figure 291).
type sanitizeState struct {
	status   uint8  // state of the last sanitize operation (SSTAT bits 2:0)
	erased   bool   // no data has been written since the last sanitize operation (SSTAT bit 8)
	progress uint16 // progress in units of 1/65536
	action   uint32 // SCDW10 bits 2:0
}

// States of the last sanitize operation in SSTAT.
const (
	sanitizeDone       = 1
	sanitizeRunning    = 2
	sanitizeHasFailed  = 3
	sanitizeDoneNoFree = 4 // like sanitizeDone, but the blocks were not deallocated
)

// Actions of a sanitize operation, in bits 2:0 of dword 10 of the command (Base Specification, figure 303).
const (
	actBlockErase  = 2
	actOverwrite   = 3
	actCryptoErase = 4
	onePass        = 1 << 4 // Overwrite Pass Count, where 0 would mean 16 passes
)

// readSanitizeState reads the Sanitize Status log page.
func (d drive) readSanitizeState() (sanitizeState, error) {
	b, err := d.log(logSanitize)
	if err != nil {
		return sanitizeState{}, commandError("read the sanitize status", err)
	}
	status := binary.LittleEndian.Uint16(b[2:])
	return sanitizeState{
		status: uint8(status & 7), erased: status&(1<<8) != 0,
		progress: binary.LittleEndian.Uint16(b), action: binary.LittleEndian.Uint32(b[4:]) & 7,
	}, nil
}

// isUnreadable reports whether a disk cannot be read because a sanitize operation is running or has failed. isUnreadable returns
// false if the state is unknown.
func (f *diskFile) isUnreadable() bool {
	s, _ := drive{f}.sanitizing()
	return s.status == sanitizeRunning || s.status == sanitizeHasFailed
}

// sanitizing returns the state of the last sanitize operation. sanitizing returns the zero value if the controller does not
// support sanitize operations.
func (d drive) sanitizing() (sanitizeState, error) {
	id, err := d.controllerOf()
	if err != nil || !id.has(canSanitize) {
		return sanitizeState{}, err
	}
	return d.readSanitizeState()
}

// checkSanitize checks that the controller can sanitize the drive, and that the drive has no other namespace.
func checkSanitize(f *diskFile) error {
	d := drive{f}
	id, err := d.localController()
	switch {
	case err != nil:
		return err
	case !id.has(canSanitize):
		return errorf(Unsupported, "the controller of %s has no Sanitize command (SANICAP)", d.Name())
	}
	return d.checkSoleNamespace(id)
}

// sanitize erases the whole NVM subsystem. If a sanitize operation is already running, the function waits for it to end, even if
// another program started it. The function does not start a new operation on a blank disk if the controller reports that nothing
// has been written since the last completed operation. If the disk is not blank, the function sanitizes the disk again, because
// nothing shows what the disk contained before the earlier operation.
func sanitize(ctx context.Context, f *diskFile, v *verification) (string, error) {
	d := drive{f}
	state, err := d.readSanitizeState()
	if err != nil {
		return "", err
	}
	blank := v.known && len(v.hashes) == 0
	switch {
	case state.status == sanitizeRunning:
	case (state.status == sanitizeDone || state.status == sanitizeDoneNoFree) && state.erased && blank:
	default:
		if err := d.command(nvmeIoctlAdminCmd, adminCommand{opcode: opSanitize, cdw10: actionFor(d.controller)}, queryTimeout, nil); err != nil {
			return "", commandError("sanitize "+d.Name(), err)
		}
	}
	return d.awaitSanitize(ctx)
}

// actionFor chooses the action for a sanitize operation. A block erase is the safest action, a cryptographic erasure is the
// fastest, and overwriting is for disks without flash. After any of them, the drive may deallocate the blocks. If the operation
// fails, only another sanitize operation makes the disk usable again.
func actionFor(id controller) uint32 {
	switch {
	case id.has(sanitizesByBlock):
		return actBlockErase
	case id.has(sanitizesByKey):
		return actCryptoErase
	}
	return actOverwrite | onePass
}

// awaitSanitize waits until a sanitize operation has ended. If ctx ends earlier, the error is [Running].
func (d drive) awaitSanitize(ctx context.Context) (string, error) {
	began := time.Now()
	for {
		state, err := d.readSanitizeState()
		if err != nil {
			return "", err
		}
		switch state.status {
		case sanitizeDone, sanitizeDoneNoFree:
			return fmt.Sprintf("sanitized the NVM subsystem, action %d", state.action), nil
		case sanitizeHasFailed:
			return "", errorf(Failed, "the sanitize operation on %s has failed, and the disk refuses all reads and writes: sanitize it again, or replace it", d.Name())
		}
		// The first waits are short, because some operations end within a second.
		if !pause(ctx, min(max(time.Since(began)/10, 50*time.Millisecond), 5*time.Second)) {
			return "", errorf(Running, "the sanitize operation on %s is in progress (%d %%): repeat the request later", d.Name(), state.percent())
		}
	}
}

// percent returns the progress of a running sanitize operation.
func (s sanitizeState) percent() int { return int(s.progress) * 100 / 65536 }
