// SPDX-License-Identifier: Apache-2.0

package reset

// This file sends NVMe admin commands through a namespace's node. The kernel passes these commands to the controller unchanged
// (nvme_ns_ioctl). The helper can therefore use the node that it already has open exclusively.
//
// The opcodes, offsets and bits in this file come from the NVM Express Base Specification 2.0 and the NVM Command Set
// Specification 1.0. The ioctl numbers come from include/uapi/linux/nvme_ioctl.h.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/device"
)

// drive is the NVMe controller of an open namespace.
type drive struct{ *diskFile }

const (
	nvmeIoctlID       = 0x4e40     // NVME_IOCTL_ID, which returns the namespace ID
	nvmeIoctlAdminCmd = 0xc0484e41 // NVME_IOCTL_ADMIN_CMD
	nvmeIoctlIOCmd    = 0xc0484e43 // NVME_IOCTL_IO_CMD
	nvmeIoctlReset    = 0x4e44     // NVME_IOCTL_RESET, only for a controller's node
)

// adminCommand is struct nvme_passthru_cmd, which has 72 bytes.
type adminCommand struct {
	opcode, flags        uint8
	_                    uint16
	nsid, cdw2, cdw3     uint32
	metadata, addr       uint64
	metadataLen, dataLen uint32
	cdw10, cdw11, cdw12  uint32
	cdw13, cdw14, cdw15  uint32
	timeoutMs, result    uint32
}

// Opcodes (Base Specification, figure 138).
const (
	opGetLogPage = 0x02
	opIdentify   = 0x06
	opFormatNVM  = 0x80
	opSanitize   = 0x84
)

// Command timeouts. After a timeout, the kernel resets the controller (nvme_timeout in drivers/nvme/host/pci.c).
const (
	queryTimeout = 5 * time.Second  // for commands that return data and change nothing
	formatTime   = 10 * time.Minute // as in nvme-cli; resetting the controller during a format would not help
)

// command sends a command with NVME_IOCTL_ADMIN_CMD or NVME_IOCTL_IO_CMD and waits for it to complete. This wait cannot be
// interrupted.
func (d drive) command(request uintptr, c adminCommand, limit time.Duration, data []byte) error {
	c.timeoutMs = uint32(limit.Milliseconds())
	status, err := d.pass(d.fd, request, &c, data)
	if status != 0 {
		err = nvmeStatus(status)
	}
	return err
}

// Values of CNS, which select the data that Identify returns (Base Specification, figure 273).
const (
	cnsNamespace           = 0x00
	cnsController          = 0x01
	cnsActiveNamespaces    = 0x02
	cnsNamespaces          = 0x10 // includes the inactive namespaces, but requires Namespace Management
	cnsAttachedControllers = 0x12 // the IDs of the controllers that a namespace is attached to
	cnsControllers         = 0x13 // the IDs of all controllers in the NVM subsystem
)

const identifySize = 4096

// identify returns the Identify data structure that the parameter cns selects.
func (d drive) identify(cns, nsid uint32) ([]byte, error) {
	b := make([]byte, identifySize)
	err := d.command(nvmeIoctlAdminCmd, adminCommand{opcode: opIdentify, nsid: nsid, cdw10: cns}, queryTimeout, b)
	if err != nil {
		return nil, fmt.Errorf("identify (CNS %#02x): %w", cns, err)
	}
	return b, nil
}

const (
	logSmart    = 0x02
	logSanitize = 0x81

	everyNamespace = 0xffffffff
	logSize        = 512
)

// log returns the first 512 bytes of one of the controller's log pages.
func (d drive) log(page uint32) ([]byte, error) {
	b := make([]byte, logSize)
	dwords := uint32(logSize/4 - 1)
	err := d.command(nvmeIoctlAdminCmd, adminCommand{opcode: opGetLogPage, nsid: everyNamespace, cdw10: page | dwords<<16}, queryTimeout, b)
	if err != nil {
		return nil, fmt.Errorf("get log page %#02x: %w", page, err)
	}
	return b, nil
}

// nvmeStatus is the status of a completed command. nvmeStatus contains "status code type << 8 | status code" and some flags.
type nvmeStatus uint16

// code returns the status without the flags More and Do Not Retry.
func (s nvmeStatus) code() uint16 { return uint16(s) & 0x7ff }

// Status codes (Base Specification, figures 94 to 99).
const (
	statusInvalidOpcode      = 0x001
	statusInvalidField       = 0x002
	statusHostIDFormat       = 0x018
	statusSanitizeFailed     = 0x01c
	statusSanitizeInProgress = 0x01d
)

// statusOf returns the NVMe status code that err wraps, or 0.
func statusOf(err error) uint16 {
	status, _ := errors.AsType[nvmeStatus](err)
	return status.code()
}

// isUnsupported reports whether a status code means that the controller does not support the command.
func isUnsupported(c uint16) bool { return c == statusInvalidOpcode || c == statusInvalidField }

// Error returns a text that contains the status code. If an operator can do something about the error, the text also
// explains the code.
func (s nvmeStatus) Error() string {
	text := map[uint16]string{
		statusInvalidOpcode:      ": invalid command opcode",
		statusInvalidField:       ": invalid field in command",
		statusSanitizeFailed:     ": the last sanitize operation has failed: only another one is possible",
		statusSanitizeInProgress: ": a sanitize operation is in progress",
		0x020:                    ": namespace is write protected",
		0x083:                    ": reservation conflict",
		0x084:                    ": format in progress",
		0x11b:                    ": sanitize prohibited while a persistent memory region is enabled",
		0x286:                    ": access denied: the namespace is locked",
		0x370:                    ": host path error: the controller is not live",
	}[s.code()]
	return fmt.Sprintf("NVMe status %#03x%s", s.code(), text)
}

// commandError returns err with a suitable [Result] and a text that describes the failed command.
func commandError(what string, err error) error {
	switch code := statusOf(err); {
	case isUnsupported(code):
		return errorf(Unsupported, "%s: %w", what, err)
	case code == statusSanitizeInProgress:
		return errorf(Busy, "%s: %w: wait for it, or request a sanitize operation", what, err)
	case errors.Is(err, unix.EINTR):
		return errorf(Failed, "%s: the controller was reset in the meantime", what)
	case errors.Is(err, unix.EACCES):
		return errorf(Failed, "%s: %w: does metalplug-reset have CAP_SYS_ADMIN?", what, err)
	}
	return errorf(resultOf(err), "%s: %w", what, err)
}

// controller is the data that Identify Controller returns (Base Specification, figure 275).
type controller []byte

// feature is one or more bits in one byte of the data from Identify Controller.
type feature struct {
	at   int
	mask byte
}

// Features of a controller.
var (
	severalControllers = feature{76, 1 << 1}  // the NVM subsystem may contain other controllers (CMIC)
	canFormat          = feature{256, 1 << 1} // OACS
	managesNS          = feature{256, 1 << 3} // OACS
	canSanitize        = feature{328, sanitizeCrypto | sanitizeBlock | sanitizeOverwrite}
	sanitizesByBlock   = feature{328, sanitizeBlock}  // SANICAP
	sanitizesByKey     = feature{328, sanitizeCrypto} // SANICAP
	reserves           = feature{520, 1 << 5}         // the controller supports reservations (ONCS)
	formatHitsAll      = feature{524, 1<<0 | 1<<1}    // Format NVM or its erasure affects all namespaces (FNA)
	cryptoFormat       = feature{524, 1 << 2}         // FNA
)

// has reports whether the controller has set at least one of a feature's bits.
func (id controller) has(f feature) bool { return id[f.at]&f.mask != 0 }

// Kinds of sanitize operations, as bits in SANICAP.
const (
	sanitizeCrypto    = 1 << 0
	sanitizeBlock     = 1 << 1
	sanitizeOverwrite = 1 << 2
)

// controllerOf returns the data from Identify Controller for an open disk. controllerOf sends the command only once for each open
// disk.
func (d drive) controllerOf() (controller, error) {
	if d.controller != nil {
		return d.controller, nil
	}
	b, err := d.identify(cnsController, 0)
	if err != nil {
		return nil, commandError("identify controller", err)
	}
	d.controller = b
	return b, nil
}

// namespace contains the fields of Identify Namespace that the helper uses (NVM Command Set Specification 1.0, figure 97).
type namespace struct {
	nsid       uint32
	flbas, dps uint8
	shared     bool // the namespace may be attached to several controllers at the same time (NMIC bit 0)
	reservable bool // the namespace supports a type of reservation (RESCAP)
}

// namespace returns the data from Identify Namespace for an open disk. namespace gets the namespace ID from the kernel.
func (d drive) namespace() (namespace, error) {
	id, err := d.ioctl(d.fd, nvmeIoctlID, nil)
	if err != nil {
		return namespace{}, commandError("get the namespace ID", err)
	}
	b, err := d.identify(cnsNamespace, uint32(id))
	if err != nil {
		return namespace{}, commandError(fmt.Sprintf("identify namespace %d", id), err)
	}
	return namespace{nsid: uint32(id), flbas: b[26], dps: b[29], shared: b[30]&1 != 0, reservable: b[31] != 0}, nil
}

// smart reads the SMART log page. If the page cannot be read, smart returns the zero value, which means that the health is
// unknown.
func (d drive) smart() device.Smart {
	b, err := d.log(logSmart)
	if err != nil {
		return device.Smart{}
	}
	return device.Smart{
		Known: true, Warning: b[0], Spare: b[3], Used: b[5],
		Temperature: int(binary.LittleEndian.Uint16(b[1:])) - 273, // the page contains the temperature in kelvin
		MediaErrors: binary.LittleEndian.Uint64(b[160:]),          // the lower half of a 128-bit value
	}
}
