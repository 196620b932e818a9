// SPDX-License-Identifier: Apache-2.0

// Package systemd connects the daemon to the service manager. The package handles readiness, the watchdog, the status line and
// the journal. If systemd did not start the daemon, the functions for the service manager have no effect.
package systemd

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// Ready reports to the service manager that the daemon has started, or that a reload is complete (sd_notify(3)).
func Ready() error { return notify(daemon.SdNotifyReady) }

// Stopping reports to the service manager that the daemon has begun to stop.
func Stopping() error { return notify(daemon.SdNotifyStopping) }

// Reloading reports to the service manager that a reload has begun. [Ready] reports the end of the reload.
func Reloading() error {
	return notify(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
}

// Alive reports to the service manager's watchdog that the daemon is still working.
func Alive() error { return notify(daemon.SdNotifyWatchdog) }

// Status sets the line that "systemctl status" shows. Status shortens and cleans the line, because systemd ignores messages above
// 4 KiB and text that is not UTF-8, and reads each further line as another assignment.
func Status(line string) error {
	return notify(fmt.Sprintf("STATUS=%.1000s", strings.ToValidUTF8(strings.ReplaceAll(line, "\n", " "), "?")))
}

// Remove makes the service manager close the copy of a descriptor that [Store] passed to it.
func Remove(name string) error { return notify("FDSTOREREMOVE=1\nFDNAME=" + name) }

func notify(state string) error {
	if _, err := daemon.SdNotify(false, state); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// Store passes a copy of a descriptor to the service manager, which keeps the copy for the next process
// (sd_pid_notify_with_fds(3), FDSTORE=1). The unit must set FileDescriptorStoreMax=. The service manager closes the copy when
// the other end of the connection hangs up.
func Store(name string, f *os.File) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	if err := store(path, name, f); err != nil {
		return fmt.Errorf("store a descriptor with the service manager: %w", err)
	}
	return nil
}

func store(path, name string, f *os.File) error {
	to, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	raw, err := f.SyscallConn() // f.Fd would set blocking mode, which all copies of the descriptor share
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) {
		sent = unix.Sendmsg(to, []byte("FDSTORE=1\nFDNAME="+name), unix.UnixRights(int(fd)), &unix.SockaddrUnix{Name: path}, 0)
	})
	return errors.Join(err, sent)
}

// WatchdogInterval returns the time between two calls to [Alive]. The interval is half of WatchdogSec=, or 0 if there is no
// watchdog.
func WatchdogInterval() (time.Duration, error) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return 0, fmt.Errorf("read the watchdog's interval: %w", err)
	}
	return interval / 2, nil
}
