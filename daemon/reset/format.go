// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Secure Erase Settings of Format NVM: bits 11:9 of dword 10 (Base Specification, figure 190).
const (
	eraseUserData = 1
	eraseCrypto   = 2
)

// formatBy returns the erasure by Format NVM with one of those settings.
func (h *host) formatBy(ses uint32) erasure {
	return erasure{
		promise: mustChange,
		ready:   func(c *claim) error { return h.formattable(c, ses) },
		run:     func(_ context.Context, _ Request, c *claim, _ prints) (string, error) { return h.format(c, ses) },
	}
}

// format formats one namespace as it is formatted, erasing what is on it. The kernel stops the I/O of all namespaces of
// the controller until it is over, which nothing can interrupt (nvme_passthru_start): seconds, or minutes where a disk
// really erases its cells.
func (h *host) format(c *claim, ses uint32) (string, error) {
	nsid, err := h.nsid(c.fd)
	if err != nil {
		return "", err
	}
	ns, err := h.namespaceOf(c.fd, nsid)
	if err != nil {
		return "", err
	}
	h.step.is("formatting %s", c.name())
	word := formatWord(ns, ses)
	if err := h.command(c.fd, nvmeIoctlAdminCmd, adminCommand{opcode: opFormatNVM, nsid: nsid, cdw10: word}, formatTime, nil); err != nil {
		return "", commandError("format "+c.name(), err)
	}
	return fmt.Sprintf("formatted namespace %d, SES %d, LBA format %d kept", nsid, ses, formatOf(ns)), nil
}

// formattable asks the controller whether it can do that, to this namespace alone.
func (h *host) formattable(c *claim, ses uint32) error {
	id, err := h.localController(c)
	switch {
	case err != nil:
		return err
	case !id.has(canFormat):
		return errorf(Unsupported, "the controller of %s has no Format command (OACS bit 1)", c.name())
	case ses == eraseCrypto && !id.has(cryptoFormat):
		return errorf(Unsupported, "the controller of %s has no cryptographic erasure (FNA bit 2)", c.name())
	case id.has(formatHitsAll):
		return h.sole(c)
	}
	return nil
}

// formatWord returns dword 10 of the command that changes nothing of how the namespace is formatted: LBA format, place of
// the metadata and protection information are what FLBAS and DPS tell. 0 instead would change the block size.
func formatWord(ns namespace, ses uint32) uint32 {
	format := formatOf(ns)
	metadata := uint32(ns.flbas >> 4 & 1) // FLBAS bit 4 to MSET
	protection := uint32(ns.dps & 7)      // DPS bits 2:0 to PI
	first := uint32(ns.dps >> 3 & 1)      // DPS bit 3 to PIL
	return format&0xf | metadata<<4 | protection<<5 | first<<8 | ses<<9 | format>>4<<12
}

// formatOf returns the number of the LBA format in use: FLBAS bits 3:0, and 6:5 above them.
func formatOf(ns namespace) uint32 { return uint32(ns.flbas&0xf) | uint32(ns.flbas>>5&3)<<4 }

// sameSize checks that a disk has kept its size and its blocks.
func (h *host) sameSize(c *claim) error {
	size, err := h.bytesOf(c.fd)
	if err != nil {
		return commandError("ask for the size of "+c.name(), err)
	}
	block, err := h.blockOf(c.fd)
	if err != nil {
		return commandError("ask for the block size of "+c.name(), err)
	}
	if size != c.size || block != c.block {
		return errorf(Failed, "%s has %d bytes in blocks of %d now, not %d in blocks of %d", c.name(), size, block, c.size, c.block)
	}
	return nil
}

// localNVMe returns the controllers of an NVMe namespace, which must be in this machine: over a network others may use what
// is behind them.
func (h *host) localNVMe(sysPath string) (controllers []string, err error) {
	controllers, err = h.controllersOf(sysPath)
	if err != nil {
		return nil, err
	}
	for _, c := range controllers {
		if transport, err := h.Attr(c, "transport"); err != nil || transport != "pcie" {
			return nil, errorf(Refused, "%s is reached by %q, not by pcie", sysPath, transport)
		}
	}
	return controllers, nil
}

// localController asks the controller of an open disk, which must be in this machine.
func (h *host) localController(c *claim) (controller, error) {
	if _, err := h.localNVMe(c.sysPath); err != nil {
		return nil, err
	}
	return h.controllerOf(c)
}

// sole refuses an erasure of the whole NVM subsystem unless the disk is the only namespace there.
func (h *host) sole(c *claim) error {
	controllers, err := h.controllersOf(c.sysPath)
	if err != nil {
		return err
	}
	own := h.NVMeSiblings(controllers[0])
	disks, err := h.namespacesOf(own)
	if err != nil {
		return err
	}
	for _, d := range disks {
		if d != c.sysPath && !slices.Contains(c.Twins, d) {
			return errorf(Refused, "%s would be erased too; erase %s alone with scrub = \"zero\"", path.Base(d), c.name())
		}
	}
	if err := h.allOurs(c, own); err != nil {
		return err
	}
	return h.noOther(c)
}

// allOurs checks that the NVM subsystem has no controllers but these: one that a virtual machine has through VFIO, or
// another host by the other port of the drive, uses namespaces that nobody here knows of.
func (h *host) allOurs(c *claim, controllers []string) error {
	id, err := h.controllerOf(c)
	if err != nil || !id.has(severalControllers) {
		return err
	}
	list, err := h.identify(c.fd, cnsControllers, 0)
	if err != nil {
		return errorf(Refused, "whether others have a controller of the NVM subsystem cannot be told: %w", err)
	}
	strange, err := h.strangers(list, controllers)
	if err != nil {
		return err
	}
	if len(strange) > 0 {
		return errorf(Refused, "what uses controller %s of the NVM subsystem, which the driver nvme does not have here, would be hit too",
			strings.Join(strange, ", "))
	}
	return nil
}

// noOther checks that the drive knows no other namespace: one may be attached to another controller, or to none. A
// controller that cannot manage namespaces has none that is not attached.
func (h *host) noOther(c *claim) error {
	id, err := h.controllerOf(c)
	if err != nil {
		return err
	}
	cns := uint32(cnsActiveNamespaces)
	if id.has(managesNS) {
		cns = cnsNamespaces
	}
	own, err := h.nsid(c.fd)
	if err != nil {
		return err
	}
	list, err := h.identify(c.fd, cns, 0)
	if err != nil {
		return commandError("list the namespaces", err)
	}
	for b := range slices.Chunk(list, 4) {
		if nsid := binary.LittleEndian.Uint32(b); nsid != 0 && nsid != own {
			return errorf(Refused, "namespace %d would be erased too; erase %s alone with scrub = \"zero\"", nsid, c.name())
		}
	}
	return nil
}
