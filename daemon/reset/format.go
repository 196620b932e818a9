// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Secure Erase Settings of Format NVM: bits 11:9 of dword 10 (Base Specification, figure 190).
const (
	eraseUserData = 1
	eraseCrypto   = 2
)

func (h *host) formatUserData(ctx context.Context, r Request, c *claim) (string, error) {
	return h.format(ctx, r, c, eraseUserData)
}

func (h *host) formatCrypto(ctx context.Context, r Request, c *claim) (string, error) {
	return h.format(ctx, r, c, eraseCrypto)
}

// format formats one namespace as it is formatted, erasing what is on it. The kernel stops the I/O of all namespaces of
// the controller until it is over, which nothing can interrupt (nvme_passthru_start): seconds, or minutes where a disk
// really erases its cells.
func (h *host) format(ctx context.Context, r Request, c *claim, ses uint32) (string, error) {
	id, ns, err := h.formattable(r, c, ses)
	if err != nil {
		return "", err
	}
	if id.formatHitsAll {
		held, err := h.holdSubsystem(ctx, r, c, id)
		if err != nil {
			return "", err
		}
		defer h.releaseAll(held)
	}
	nsid, err := h.nsid(c.fd)
	if err != nil {
		return "", err
	}
	h.step.is("formatting %s", c.name())
	if err := h.formatNVM(c.fd, nsid, formatWord(ns, ses)); err != nil {
		return "", commandError("format "+c.name(), err)
	}
	return fmt.Sprintf("formatted namespace %d, SES %d, LBA format %d kept", nsid, ses, formatOf(ns)), nil
}

// formattable asks the controller whether it can do that.
func (h *host) formattable(r Request, c *claim, ses uint32) (controller, namespace, error) {
	if _, err := h.localNVMe(r.SysPath); err != nil {
		return controller{}, namespace{}, err
	}
	id, err := h.controllerOf(c)
	if err != nil {
		return controller{}, namespace{}, err
	}
	switch {
	case !id.canFormat:
		return controller{}, namespace{}, errorf(Unsupported, "the controller of %s has no Format command (OACS bit 1)", c.name())
	case ses == eraseCrypto && !id.cryptoFormat:
		return controller{}, namespace{}, errorf(Unsupported, "the controller of %s has no cryptographic erasure (FNA bit 2)", c.name())
	}
	nsid, err := h.nsid(c.fd)
	if err != nil {
		return controller{}, namespace{}, err
	}
	ns, err := h.namespaceOf(c.fd, nsid)
	return id, ns, err
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

func (h *host) formatNVM(fd int, nsid, cdw10 uint32) error {
	return h.command(fd, adminCommand{opcode: opFormatNVM, nsid: nsid, cdw10: cdw10}, formatTime, nil)
}

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

// holdSubsystem holds all disks of the NVM subsystem but the one that is held already, and makes sure that there is
// nothing on them, and no namespace that is no disk, that would be erased too.
func (h *host) holdSubsystem(ctx context.Context, r Request, c *claim, id controller) (held []*claim, err error) {
	controllers, err := h.controllersOf(r.SysPath)
	if err != nil {
		return nil, err
	}
	hit, err := h.namespacesOf(h.NVMeSiblings(controllers[0]))
	if err != nil {
		return nil, err
	}
	if err := r.vouched(hit); err != nil {
		return nil, err
	}
	if err := h.allOurs(c.fd, id, h.NVMeSiblings(controllers[0])); err != nil {
		return nil, err
	}
	if err := h.allSeen(c.fd, id, hit); err != nil {
		return nil, err
	}
	hit = slices.DeleteFunc(hit, func(d string) bool { return d == r.SysPath || slices.Contains(c.Twins, d) })
	if held, err = h.holdAll(hit); err != nil {
		return nil, err
	}
	for _, other := range held {
		err := h.shared(other)
		if err == nil {
			err = h.mustBeBlank(ctx, r, other)
		}
		if err != nil {
			h.releaseAll(held)
			return nil, err
		}
	}
	return held, nil
}

// allOurs checks that the NVM subsystem has no controllers but these: one that a virtual machine has through VFIO, or
// another host by the other port of the drive, uses namespaces that nobody here knows of.
func (h *host) allOurs(fd int, id controller, controllers []string) error {
	if !id.severalControllers {
		return nil
	}
	list, err := h.identify(fd, cnsControllers, 0)
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

// allSeen checks that each namespace that there is is one of the disks: one may be attached to another controller, or to
// none. A controller that cannot manage namespaces has none that is not attached.
func (h *host) allSeen(fd int, id controller, disks []string) error {
	cns := uint32(cnsActiveNamespaces)
	if id.managesNS {
		cns = cnsNamespaces
	}
	list, err := h.identify(fd, cns, 0)
	if err != nil {
		return commandError("list the namespaces", err)
	}
	var seen []string
	for _, d := range disks {
		nsid, err := h.Attr(d, "nsid")
		if err != nil {
			return err
		}
		seen = append(seen, nsid)
	}
	for i := 0; i < len(list); i += 4 {
		nsid := binary.LittleEndian.Uint32(list[i:])
		if nsid == 0 {
			break
		}
		if !slices.Contains(seen, strconv.FormatUint(uint64(nsid), 10)) {
			return errorf(Refused, "namespace %d, which is no disk here, would be erased too", nsid)
		}
	}
	return nil
}
