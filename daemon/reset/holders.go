// SPDX-License-Identifier: Apache-2.0

package reset

// Who has a disk open. An exclusive open notices claims of the kernel, and not a process that has just opened the node, such
// as a virtual machine: the helper that sees all processes is asked.

import (
	"context"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/exchange"
)

// passingFor is how long a process that has a disk open is waited for: udev's workers pass in a moment.
const passingFor = 2 * time.Second

// questionLimit bounds one question. The service manager of a busy machine may take seconds to start the helper that answers.
const questionLimit = 10 * time.Second

// askHolders asks the program metalplug-holders.
func askHolders(ctx context.Context, c config.Config, numbers []cgroup.Number) (cgroup.Answer, error) {
	return cgroup.Client{Peer: exchange.Peer{Program: cgroup.Program, Socket: c.Reset.Holders, Activated: true}}.Holders(ctx, numbers)
}

// unheld makes sure that no other process has a disk, a part of it or its controllers open. A process that cannot be looked
// at may have.
func (h *host) unheld(ctx context.Context, r Request, c *claim) error {
	settings, err := h.settings()
	if err != nil { // a survey needs no configuration; an erasure has read it
		settings = config.Default()
	}
	nodes, err := h.NodesOf(c.sysPath)
	if err != nil {
		return errorf(Busy, "which processes have %s open is not known: %w", c.name(), err)
	}
	names := make(map[cgroup.Number]string)
	for _, node := range nodes {
		if n, err := cgroup.ParseNumber(node.Block, node.Number); err == nil { // else it has no node
			names[n] = node.Name()
		}
	}
	h.step.is("asking who has %s open", c.name())
	for end := time.Now().Add(passingFor); ; {
		limited, cancel := context.WithTimeout(ctx, questionLimit)
		answer, err := h.holders(limited, settings, slices.Collect(maps.Keys(names)))
		cancel()
		err = r.free(c, names, answer, err)
		if err == nil || time.Now().After(end) || !pause(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// free returns which other process has one of the nodes open, or may have, as [Busy]. err is that of the question. Unread
// processes of a pod count if it has had the disk, and of all pods if it is not known which of them have.
func (r Request) free(c *claim, names map[cgroup.Number]string, answer cgroup.Answer, err error) error {
	for _, holder := range answer.Holders {
		if holder.PID != os.Getpid() {
			return errorf(Busy, "%s is open in process %d (%s)", names[holder.Number], holder.PID, holder.Comm)
		}
	}
	pods := r.Pods
	if len(pods) == 0 && r.Tenant {
		for _, u := range answer.Unread {
			pods = append(pods, u.PodUID)
		}
	}
	if err == nil {
		err = answer.Err(pods...)
	}
	if err != nil {
		return errorf(Busy, "which processes have %s open is not known: %w", c.name(), err)
	}
	return nil
}
