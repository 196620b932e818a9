// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"cmp"
	"context"
	"os"
	"sync"
	"sync/atomic"
)

// Options contains the locations of udev, the kernel log and the file systems for [Open]. The zero value selects the standard
// locations.
type Options struct {
	Socket *os.File // event socket that systemd has passed, for [OpenMonitor], or nil to open one
	// KernelLog is the open /dev/kmsg that systemd has passed. Reading begins with the first unread message. If KernelLog is nil,
	// [Open] opens the log itself, and reading begins with the next new message.
	KernelLog *os.File
	Proc      string // mount point of procfs, or empty for /proc
	// Cgroup is the mount point of cgroup v2, which contains the cgroup of udevd's unit, or empty for /sys/fs/cgroup.
	Cgroup string
}

// System is a [Source] for this machine's udev. System gets devices from libudev, events from a [Monitor], mounts from procfs,
// and driver messages from the kernel log. The methods are safe for concurrent use.
type System struct {
	monitor *Monitor
	mounts  []*table
	udevd   *udevdWatch
	log     *kernelLog            // nil if it could not be opened
	logErr  atomic.Pointer[error] // why the log is not read, or nil
}

// Open opens the sources of events, which queue their events until Listen is called. The caller must close the System.
func Open(o Options) (s *System, err error) {
	s = &System{}
	if s.monitor, err = OpenMonitor(o.Socket); err != nil {
		return nil, err
	}
	if s.mounts, err = openMounts(cmp.Or(o.Proc, "/proc")); err == nil {
		s.udevd, err = openUdevdWatch(cmp.Or(o.Cgroup, "/sys/fs/cgroup"))
	}
	if err != nil {
		s.monitor.Close()
		closeTables(s.mounts)
		return nil, err
	}
	if s.log, err = openKernelLog(o.KernelLog); err != nil {
		s.logErr.Store(&err)
	}
	return s, nil
}

// Close closes the sources of events. The caller must wait until Listen has returned.
func (s *System) Close() error {
	closeTables(s.mounts)
	s.udevd.close()
	s.log.close()
	return s.monitor.Close()
}

// KernelLog returns the error that prevents reading the kernel log, or nil. Without the kernel log, Listen sends no [Logged]
// events.
func (s *System) KernelLog() error { return *cmp.Or(s.logErr.Load(), new(error)) }

// Enumerate returns the same devices as the function [Enumerate].
func (s *System) Enumerate() ([]Device, error) { return Enumerate() }

// Listen sends the events from udevd, from the mount tables and from the kernel log. Listen also sends an event when udevd ends
// or starts again. When parent ends, Listen returns parent's error. If the kernel log becomes unreadable, Listen continues
// without the log. Listen may be called only once.
func (s *System) Listen(parent context.Context, events chan<- Event) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	var others sync.WaitGroup
	for _, t := range s.mounts {
		others.Go(func() { cancel(t.listen(ctx, events)) })
	}
	others.Go(func() { cancel(s.udevd.listen(ctx, events)) })
	if s.log != nil {
		others.Go(func() {
			if err := s.log.listen(ctx, events); ctx.Err() == nil {
				s.logErr.Store(&err)
			}
		})
	}
	cancel(s.monitor.Listen(ctx, events))
	others.Wait()
	if parent.Err() != nil {
		return parent.Err()
	}
	return context.Cause(ctx)
}

// Running reports whether udevd is running. Without udevd, there are no events from udevd and no links to new device nodes, and
// Listen sends [Missed] at regular intervals.
func (s *System) Running() bool { return s.udevd.isRunning() }
