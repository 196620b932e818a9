// SPDX-License-Identifier: Apache-2.0

package reset

// Who has a disk open. An exclusive open notices claims of the kernel, and not a process that has just opened the node, such
// as a virtual machine: the helper that sees all processes is asked.

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/exchange"
)

// passingFor is how long a process that has a disk open is waited for: udev's workers pass in a moment.
const passingFor = 2 * time.Second

// askHolders asks the program metalplug-holders.
func askHolders(ctx context.Context, c config.Config, numbers []cgroup.Number) (cgroup.Answer, error) {
	return cgroup.Client{Peer: exchange.Peer{Program: cgroup.Program, Socket: c.Reset.Holders, Activated: true}}.Holders(ctx, numbers)
}

// unheld makes sure that no other process has a disk, a part of it or its controllers open. A process that cannot be looked
// at may have.
func (h *host) unheld(ctx context.Context, c *claim) error {
	settings, err := h.settings()
	if err != nil { // a survey needs no configuration; an erasure has read it
		settings = config.Default()
	}
	names, numbers := h.nodesOf(c)
	h.step.is("asking who has %s open", c.name())
	ctx, cancel := context.WithTimeout(ctx, passingFor)
	defer cancel()
	for {
		err := h.heldOpen(ctx, settings, names, numbers)
		if err == nil || !pause(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// heldOpen returns which other process has one of the devices open, as [Busy].
func (h *host) heldOpen(ctx context.Context, settings config.Config, names map[cgroup.Number]string, numbers []cgroup.Number) error {
	answer, err := h.holders(ctx, settings, numbers)
	for _, holder := range answer.Holders {
		if holder.PID != os.Getpid() {
			return errorf(Busy, "%s is open in process %d (%s)", names[holder.Number], holder.PID, holder.Comm)
		}
	}
	if err != nil {
		return errorf(Busy, "which processes have %s open is not known: %w", names[numbers[0]], err)
	}
	return nil
}

// nodesOf returns the numbers and names of all nodes by which a disk can be read or written: its own, those of its
// partitions, of its controllers and of the character devices of its namespace.
func (h *host) nodesOf(c *claim) (names map[cgroup.Number]string, numbers []cgroup.Number) {
	paths := append([]string{c.sysPath}, c.partitions...)
	controllers, err := h.controllersOf(c.sysPath)
	if err == nil { // else it is of none
		paths = append(paths, controllers...)
		for _, dir := range append(controllers, path.Dir(c.sysPath)) {
			for _, name := range h.Names(dir) {
				if strings.HasPrefix(name, "ng") {
					paths = append(paths, dir+"/"+name)
				}
			}
		}
	}
	names = make(map[cgroup.Number]string)
	for _, p := range paths {
		n := cgroup.Number{Block: h.Link(p, "subsystem") == "block"}
		text, err := h.Attr(p, "dev")
		if err != nil {
			continue // it has no node
		}
		if _, err := fmt.Sscanf(text, "%d:%d", &n.Major, &n.Minor); err == nil && names[n] == "" {
			names[n] = path.Base(p)
			numbers = append(numbers, n)
		}
	}
	return names, numbers
}
