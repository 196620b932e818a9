// SPDX-License-Identifier: Apache-2.0

package reset

// Users of a disk, as far as the kernel reports them. Package sysfs answers that for the daemon as well. Only this program
// opens nodes, so only it asks a loop device for the number of its backing device.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// diskAt looks at a disk.
func (h *host) diskAt(sysPath string) (d sysfs.Disk, err error) {
	d = h.DiskAt(sysPath)
	if p, ok := d.Part(func(n sysfs.Node) bool { return n.Number == "" }); ok {
		return d, errorf(Gone, "%s has no device number", p.Name())
	}
	return d, nil
}

// unused returns nil if nothing shows that a disk is used, or who uses it, as [Busy].
func (h *host) unused(d sysfs.Disk) error {
	if err := h.InUse(d); err != nil {
		return errorf(Busy, "%w", err)
	}
	if !h.Present("/proc/1/mountinfo") { // what only this unit has mounted is not enough for an erasure
		return errorf(Busy, "whether %s is mounted cannot be told: /proc/1/mountinfo is missing", d.Name())
	}
	return h.looped(d)
}

// looped looks for loop devices on top. These claim nothing, so that an exclusive open does not notice them. The name of a
// backing file may be that of a node anywhere, so the helper asks the loop device itself.
func (h *host) looped(d sysfs.Disk) error {
	for _, name := range h.Names("/sys/block") {
		if !h.Present("/sys/block/" + name + "/loop/backing_file") {
			continue // no loop device, or not set up
		}
		number, err := h.below(name)
		switch {
		case errors.Is(err, unix.ENXIO), errors.Is(err, Gone), errors.Is(err, sysfs.ErrGone):
			continue // it was taken down meanwhile
		case err != nil:
			return errorf(Busy, "what is below %s cannot be told: %w", name, err)
		}
		if p, ok := d.Part(func(n sysfs.Node) bool { return n.Number == number }); ok {
			return errorf(Busy, "%s is the file of %s", p.Name(), name)
		}
	}
	return nil
}

// loopGetStatus64 is LOOP_GET_STATUS64 (include/uapi/linux/loop.h). struct loop_info64 has 232 bytes, with lo_rdevice at 16.
const loopGetStatus64 = 0x4c05

// below returns the number of the device that backs a loop device, or 0:0 for a regular file.
func (h *host) below(loop string) (number string, err error) {
	fd, err := h.opened("/sys/block/"+loop, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer h.close(fd)
	info := make([]byte, 232)
	if _, err := h.ioctl(fd, loopGetStatus64, info); err != nil {
		return "", err
	}
	device := binary.NativeEndian.Uint64(info[16:])
	return fmt.Sprintf("%d:%d", unix.Major(device), unix.Minor(device)), nil
}

// Processes that have a disk open. An exclusive open notices claims in the kernel. It does not notice a process that has just
// opened the node, such as a virtual machine. The helper that sees all processes answers for those.

// passingFor is how long the helper waits for a process that has a disk open. Workers of udev close it in a moment.
const passingFor = 2 * time.Second

// questionLimit bounds one question. The service manager of a busy machine may take seconds to start the helper that answers.
const questionLimit = 10 * time.Second

// askHolders asks the program metalplug-holders.
func askHolders(ctx context.Context, c config.Config, numbers []cgroup.Number) (cgroup.Answer, error) {
	return cgroup.Client{Peer: exchange.Peer{Program: cgroup.Program, Socket: c.Reset.Holders, Activated: true}}.Holders(ctx, numbers)
}

// unheld makes sure that no other process has a disk, a part of it or its controllers open. A process that cannot be looked
// at may have.
func (t *task) unheld(ctx context.Context, c *claim) error {
	settings, err := t.settings()
	if err != nil { // a survey needs no configuration, and an erasure has read it
		settings = config.Default()
	}
	nodes, err := t.NodesOf(c.sysPath)
	if err != nil {
		return errorf(Busy, "which processes have %s open is not known: %w", c.Name(), err)
	}
	names := make(map[cgroup.Number]string)
	for _, node := range nodes {
		if n, err := cgroup.ParseNumber(node.Block, node.Number); err == nil { // else it has no node
			names[n] = node.Name()
		}
	}
	t.step.is("asking who has %s open", c.Name())
	for end := time.Now().Add(passingFor); ; {
		limited, cancel := context.WithTimeout(ctx, questionLimit)
		answer, err := t.holders(limited, settings, slices.Collect(maps.Keys(names)))
		cancel()
		err = t.free(c, names, answer, err)
		if err == nil || time.Now().After(end) || !pause(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// free returns which other process has one of the nodes open, or may have, as [Busy]. err is that of the question. Unread
// processes of a pod count if it has had the disk, and of all pods if it is not known which of them have.
func (t *task) free(c *claim, names map[cgroup.Number]string, answer cgroup.Answer, err error) error {
	for _, holder := range answer.Holders {
		if holder.PID != os.Getpid() {
			return errorf(Busy, "%s is open in process %d (%s)", names[holder.Number], holder.PID, holder.Comm)
		}
	}
	pods := t.Pods
	if len(pods) == 0 && t.Tenant {
		for _, u := range answer.Unread {
			pods = append(pods, u.PodUID)
		}
	}
	if err == nil {
		err = answer.Err(pods...)
	}
	if err != nil {
		return errorf(Busy, "which processes have %s open is not known: %w", c.Name(), err)
	}
	return nil
}
