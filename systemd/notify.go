// SPDX-License-Identifier: Apache-2.0

// Package systemd connects the daemon to the service manager. It has readiness, watchdog and status, and the
// journal. Without systemd every function does nothing, or returns nothing.
package systemd

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// Notifier sends states to the service manager (sd_notify(3)). The zero value sends to $NOTIFY_SOCKET. Quiet sends
// nothing, for a daemon inside another program.
type Notifier struct {
	Quiet bool
}

// Ready says that the start, or a reload, is complete.
func (n Notifier) Ready() error { return n.send(daemon.SdNotifyReady) }

// Stopping says that the end has begun.
func (n Notifier) Stopping() error { return n.send(daemon.SdNotifyStopping) }

// Reloading notifies the service manager that a reload has begun. [Notifier.Ready] ends it.
func (n Notifier) Reloading() error {
	return n.send(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
}

// Alive is the ping that the watchdog waits for.
func (n Notifier) Alive() error { return n.send(daemon.SdNotifyWatchdog) }

// Store gives the service manager a copy of a descriptor for the next process (sd_pid_notify_with_fds(3), FDSTORE=1). It is
// stored where the unit has FileDescriptorStoreMax=, until the other end hangs up.
func (n Notifier) Store(name string, f *os.File) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if n.Quiet || path == "" {
		return nil
	}
	to, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("store a descriptor with the service manager: %w", err)
	}
	defer unix.Close(to)
	raw, err := f.SyscallConn() // f.Fd would make reads of its other copies block
	if err != nil {
		return fmt.Errorf("store a descriptor with the service manager: %w", err)
	}
	var sent error
	err = raw.Control(func(fd uintptr) {
		sent = unix.Sendmsg(to, []byte("FDSTORE=1\nFDNAME="+name), unix.UnixRights(int(fd)), &unix.SockaddrUnix{Name: path}, 0)
	})
	if err = errors.Join(err, sent); err != nil {
		return fmt.Errorf("store a descriptor with the service manager: %w", err)
	}
	return nil
}

// Remove lets the service manager close a stored descriptor.
func (n Notifier) Remove(name string) error { return n.send("FDSTOREREMOVE=1\nFDNAME=" + name) }

// Status sets the line that "systemctl status" shows.
func (n Notifier) Status(line string) error { return n.send("STATUS=" + line) }

func (n Notifier) send(state string) error {
	if n.Quiet {
		return nil
	}
	if _, err := daemon.SdNotify(false, state); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// WatchdogInterval returns how often the service manager wants [Notifier.Alive]. It is half of WatchdogSec=, or 0 for
// never.
func (n Notifier) WatchdogInterval() (time.Duration, error) {
	if n.Quiet {
		return 0, nil
	}
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return 0, fmt.Errorf("read the watchdog's interval: %w", err)
	}
	return interval / 2, nil
}
