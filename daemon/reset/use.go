// SPDX-License-Identifier: Apache-2.0

package reset

// This file finds the uses that the kernel reports for a disk. Like metalplugd, metalplug-reset uses package sysfs for this
// purpose. metalplug-reset also asks loop devices for their backing devices. metalplugd cannot do this, because only
// metalplug-reset opens nodes.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// checkUnused returns nil if nothing shows that a disk is in use. Otherwise, checkUnused returns a [Busy] error that describes
// the use.
func (h *host) checkUnused(d sysfs.Disk) error {
	if err := h.InUse(d); err != nil {
		return errorf(Busy, "%w", err)
	}
	if !h.Present("/proc/1/mountinfo") { // the mounts of process 1 must also be checked
		return errorf(Busy, "cannot determine whether %s is mounted: /proc/1/mountinfo is missing", d.Name())
	}
	return h.checkLoopDevices(d)
}

// checkLoopDevices returns an error if a loop device is set up on a disk. A loop device does not open the disk exclusively, so
// the disk can still be opened exclusively. The backing file may have any path, so the function asks the loop device for the
// number of its backing device.
func (h *host) checkLoopDevices(d sysfs.Disk) error {
	const virtual = devices + "virtual/block/" // loop devices have no parent (drivers/block/loop.c, loop_add)
	var failure error
	for _, name := range h.Recording(&failure).Names(virtual) {
		setUp := func() bool { return h.Present(virtual + name + "/loop/backing_file") }
		if !setUp() {
			continue // this is not a loop device, or the loop device has no backing file
		}
		number, err := h.backingDevice(name)
		switch {
		case err != nil && !setUp(), errors.Is(err, unix.ENXIO):
			continue // another process has detached the loop device
		case err != nil:
			return errorf(Busy, "cannot determine what is below %s: %w", name, err)
		}
		if p, ok := d.Part(func(n sysfs.Node) bool { return n.Number == number }); ok {
			return errorf(Busy, "%s is the backing file of %s", p.Name(), name)
		}
	}
	if failure != nil {
		return errorf(Busy, "cannot determine whether %s is the backing file of a loop device: %w", d.Name(), failure)
	}
	return nil
}

// backingDevice returns the number of the block device that backs a loop device, or "0:0" for a regular file. The backing file's
// path does not show this number. A machine may have many loop devices, so the function makes only a few calls for each. The loop
// device reports its own number. backingDevice compares this number with the name to check that it has opened the right device.
// All loop devices have the major number 7 (include/uapi/linux/major.h). struct loop_info64 has 232 bytes, with lo_rdevice at 16
// and lo_number at 40 (include/uapi/linux/loop.h).
func (h *host) backingDevice(loop string) (number string, err error) {
	name := "/dev/" + loop
	fd, err := h.open(h.Path(name), unix.O_RDONLY)
	if err != nil {
		return "", openError(name, err)
	}
	defer h.close(fd)
	info := make([]byte, 232)
	is := h.node(fd)
	if is.block && strings.HasPrefix(is.number, "7:") {
		_, err = h.ioctl(fd, unix.LOOP_GET_STATUS64, info)
	} else {
		loop = "" // an answer would be from another device
	}
	if err == nil && loop != fmt.Sprint("loop", binary.NativeEndian.Uint32(info[40:])) {
		err = errorf(Refused, "%s is the node of another device: %s", name, is.number)
	}
	device := binary.NativeEndian.Uint64(info[16:])
	return fmt.Sprintf("%d:%d", unix.Major(device), unix.Minor(device)), err
}

// This part finds processes that have a disk open. An exclusive open does not detect a process that has opened the node
// without O_EXCL, such as a virtual machine. metalplug-holders finds such a process, because it sees all processes.

// closeLimit is how long the helper waits for other processes to close a disk. For example, udevd's workers keep a disk open only
// briefly.
const closeLimit = 2 * time.Second

// holdersLimit is the time limit for one request to metalplug-holders. On a busy node, systemd may take seconds to start the
// program.
const holdersLimit = 10 * time.Second

// askHolders sends a request to the program metalplug-holders.
func askHolders(ctx context.Context, c config.Config, numbers []cgroup.Number) (cgroup.Answer, error) {
	return cgroup.Client{Peer: exchange.Peer{Program: cgroup.Program, Socket: c.Reset.Holders, Activated: true}}.Holders(ctx, func() []cgroup.Number { return numbers })
}

// checkNotOpen checks that no other process has a disk, one of its partitions or one of its controllers open.
func (t *task) checkNotOpen(ctx context.Context, f *diskFile) error {
	settings, err := t.settings()
	if err != nil { // a survey does not need the configuration, and an erasure has already read it
		settings = config.Default()
	}
	nodes, err := t.NodesOf(f.sysPath)
	if err != nil {
		return errorf(Busy, "cannot determine which processes have %s open: %w", f.Name(), err)
	}
	names := make(map[cgroup.Number]string)
	for _, node := range nodes {
		if n, err := cgroup.ParseNumber(node.Block, node.Number); err == nil { // a disk without a valid number has no node
			names[n] = node.Name()
		}
	}
	t.step.set("checking which processes have %s open", f.Name())
	for end := time.Now().Add(closeLimit); ; {
		limited, cancel := context.WithTimeout(ctx, holdersLimit)
		answer, err := t.holders(limited, settings, slices.Collect(maps.Keys(names)))
		cancel()
		err = t.checkHolders(f, names, answer, err)
		if err == nil || time.Now().After(end) || !pause(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// checkHolders returns [Busy] if another process has, or may have, one of the nodes open. The parameter err is the error from
// the request to metalplug-holders. A process that cannot be inspected is treated as a user if it belongs to the host or to a
// privileged pod, or if its pod may have held the disk.
func (t *task) checkHolders(f *diskFile, names map[cgroup.Number]string, answer cgroup.Answer, err error) error {
	for _, holder := range answer.Holders {
		if holder.PID != os.Getpid() {
			return errorf(Busy, "%s is open in process %d (%q)", names[holder.Number], holder.PID, holder.Comm)
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
		return errorf(Busy, "cannot determine which processes have %s open: %w", f.Name(), err)
	}
	return nil
}
