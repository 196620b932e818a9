// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
)

// Options say where the system's parts are. The zero value is this machine as it usually is.
type Options struct {
	Socket *os.File // udev's event socket as systemd passes it, for [MonitorFromFile], or nil to open one
	// KernelLog is /dev/kmsg as systemd passes it, which is read from the first message that was not read before. With nil
	// [Open] opens it, and reads the messages from now on.
	KernelLog *os.File
	Proc      string // where procfs is, or empty for /proc
	Run       string // where udevd keeps its state in the directory udev, or empty for /run
	Cgroup    string // where cgroup v2 is, in which udevd's unit has one, or empty for /sys/fs/cgroup
}

// System is this machine's udev, as a [Source]. Devices come from libudev, events from a [Monitor], for what is
// mounted from procfs and for what drivers only log from the kernel's log. Its methods are safe for concurrent use.
type System struct {
	monitor *Monitor
	mounts  []*table
	udevd   *udevdWatch
	log     *kernelLog            // nil if it could not be opened
	logErr  atomic.Pointer[error] // why it is not read, or nil
	run     string
}

// Open begins to listen. Events from then on wait for Listen. The caller has to close the system.
func Open(o Options) (s *System, err error) {
	if err := checkLibudev(); err != nil {
		return nil, err
	}
	s = &System{run: cmp.Or(o.Run, "/run")}
	if o.Socket != nil {
		s.monitor, err = MonitorFromFile(o.Socket)
	} else {
		s.monitor, err = OpenMonitor()
	}
	if err != nil {
		return nil, err
	}
	if s.mounts, err = openMounts(cmp.Or(o.Proc, "/proc")); err != nil {
		s.monitor.Close()
		return nil, err
	}
	if s.udevd, err = openUdevdWatch(cmp.Or(o.Cgroup, "/sys/fs/cgroup"), s.run); err != nil {
		s.monitor.Close()
		closeTables(s.mounts)
		return nil, err
	}
	if o.KernelLog != nil {
		s.log, err = kernelLogFromFile(o.KernelLog)
	} else {
		s.log, err = openKernelLog()
	}
	if err != nil {
		s.logErr.Store(&err)
	}
	return s, nil
}

// Close ends listening permanently. Listen must have returned.
func (s *System) Close() error {
	closeTables(s.mounts)
	s.udevd.close()
	s.log.close()
	return s.monitor.Close()
}

// KernelLog returns why the kernel's log is not read, or not any more, or nil. Without the log no [Logged] comes.
func (s *System) KernelLog() error {
	if err := s.logErr.Load(); err != nil {
		return *err
	}
	return nil
}

// Enumerate lists all devices that have a subsystem, also those that udevd has not processed. It reads the whole of sysfs and
// udev's database, some 0.1 ms for each device. It leaves out a device that vanishes in between.
func (s *System) Enumerate() ([]Device, error) {
	devices, err := enumerate()
	if err != nil {
		return nil, fmt.Errorf("enumerate udev devices: %w", err)
	}
	return devices, nil
}

// Listen sends the events of udevd, of its absence, of the mounts and of the kernel's log until parent ends, whose error it then
// returns. If the kernel's log cannot be read any more, it goes on without. It may be called once.
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

// Running reports whether there is an udevd. Without one no event comes and no node gets its links. Listen sends [Missed] at
// intervals instead.
func (s *System) Running() bool { return s.udevd.running() }

// Dropped returns the counters of the event socket and of the kernel's log.
func (s *System) Dropped() Dropped {
	dropped := s.monitor.Dropped()
	if s.log != nil {
		dropped.Overwritten = s.log.overwritten.Load()
	}
	return dropped
}
