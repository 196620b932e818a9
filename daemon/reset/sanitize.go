// SPDX-License-Identifier: Apache-2.0

package reset

// Sanitize: the controller erases everything that the NVM subsystem holds, all namespaces, caches and spare blocks, in the
// background. Nothing stops it, no reset and no loss of power; until it is over no namespace can be read (NVMe Base
// Specification 2.0, 8.21). Seconds with cryptographic erasure, up to a day with overwriting.

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"
)

// sanitizeState is the Sanitize Status log page (Base Specification, figure 291).
type sanitizeState struct {
	status   uint8  // SSTAT bits 2:0
	erased   bool   // SSTAT bit 8: nothing has been written since
	progress uint16 // 65536ths
	action   uint32 // SCDW10 bits 2:0
}

// What SSTAT says of the last sanitize.
const (
	sanitizeDone       = 1
	sanitizeRunning    = 2
	sanitizeHasFailed  = 3
	sanitizeDoneNoFree = 4 // without deallocating the blocks
)

// Actions: dword 10 bits 2:0 of the command (Base Specification, figure 303).
const (
	actBlockErase  = 2
	actOverwrite   = 3
	actCryptoErase = 4
	onePass        = 1 << 4 // Overwrite Pass Count; 0 would be 16 passes
)

// stateOf reads the log page.
func (h *host) stateOf(fd int) (sanitizeState, error) {
	b, err := h.log(fd, logSanitize)
	if err != nil {
		return sanitizeState{}, commandError("read the sanitize status", err)
	}
	status := binary.LittleEndian.Uint16(b[2:])
	return sanitizeState{
		status: uint8(status & 7), erased: status&(1<<8) != 0,
		progress: binary.LittleEndian.Uint16(b), action: binary.LittleEndian.Uint32(b[4:]) & 7,
	}, nil
}

// unreadable tells whether a sanitize keeps a disk from being read: one that runs, or one that has failed.
func (h *host) unreadable(c *claim) bool {
	s, err := h.sanitizing(c)
	return err == nil && (s.status == sanitizeRunning || s.status == sanitizeHasFailed)
}

// sanitizing returns the state of the last sanitize, of a controller that knows of any.
func (h *host) sanitizing(c *claim) (sanitizeState, error) {
	id, err := h.controllerOf(c)
	if err != nil || !id.has(canSanitize) {
		return sanitizeState{}, err
	}
	return h.stateOf(c.fd)
}

func (s sanitizeState) over() bool { return s.status == sanitizeDone || s.status == sanitizeDoneNoFree }

// sanitizable asks the controller whether it can do that, to this namespace alone.
func (h *host) sanitizable(c *claim) error {
	id, err := h.localController(c)
	switch {
	case err != nil:
		return err
	case !id.has(canSanitize):
		return errorf(Unsupported, "the controller of %s has no Sanitize command (SANICAP)", c.name())
	}
	return h.sole(c)
}

// sanitize erases the whole subsystem. One that is running is followed, whoever has begun it. One that is over counts if
// the request says that it has asked for it, or if the controller says that nothing has been written since, and if the disk
// is blank: nothing tells other content from what was there before.
func (h *host) sanitize(ctx context.Context, r Request, c *claim, had prints) (string, error) {
	id, err := h.controllerOf(c)
	if err != nil {
		return "", err
	}
	state, err := h.stateOf(c.fd)
	if err != nil {
		return "", err
	}
	blank := had.known && len(had.at) == 0
	switch {
	case state.status == sanitizeRunning:
	case state.over() && (r.Follow || state.erased) && blank:
	case state.over() && r.Follow:
		return "", errorf(Failed, "the sanitize of %s is over, and nothing tells what is there now from what was there before; sanitize it again", c.name())
	case state.status == sanitizeHasFailed && r.Follow:
	default:
		if err := h.command(c.fd, nvmeIoctlAdminCmd, adminCommand{opcode: opSanitize, cdw10: actionFor(id)}, shortly, nil); err != nil {
			return "", commandError("sanitize "+c.name(), err)
		}
	}
	return h.followed(ctx, c)
}

// actionFor chooses: erased cells are the surest, a thrown away key is quickest, overwriting is for what is not flash.
// Deallocation afterwards is not forbidden, nor is it allowed to go on after a failure without another sanitize.
func actionFor(id controller) uint32 {
	switch {
	case id.has(sanitizesByBlock):
		return actBlockErase
	case id.has(sanitizesByKey):
		return actCryptoErase
	}
	return actOverwrite | onePass
}

// followed waits until a sanitize is over, or the time is: then it is [Running].
func (h *host) followed(ctx context.Context, c *claim) (string, error) {
	began := time.Now()
	for {
		state, err := h.stateOf(c.fd)
		if err != nil {
			return "", err
		}
		switch state.status {
		case sanitizeDone, sanitizeDoneNoFree:
			return fmt.Sprintf("sanitized the NVM subsystem, action %d", state.action), nil
		case sanitizeHasFailed:
			return "", errorf(Failed, "the sanitize of %s has failed, and the disk holds back everything: sanitize again, or replace it", c.name())
		}
		if !pause(ctx, pollEvery(time.Since(began))) {
			return "", errorf(Running, "the sanitize of %s goes on in the disk (%d %%): ask again", c.name(), state.percent())
		}
	}
}

// percent returns how much of a sanitize that runs is done.
func (s sanitizeState) percent() int { return int(s.progress) * 100 / 65536 }

// pollEvery is how long to wait between looks: often at first, for some are over within a second.
func pollEvery(since time.Duration) time.Duration {
	return min(max(since/10, 50*time.Millisecond), 5*time.Second)
}
