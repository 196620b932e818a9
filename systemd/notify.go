// SPDX-License-Identifier: Apache-2.0

// Package systemd is how the daemon talks to the service manager: readiness, watchdog and status, the sockets that it
// passes on, and the journal. Without systemd every function does nothing, or says that there is nothing.
package systemd

import (
	"fmt"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
)

// Notifier sends states to the service manager (sd_notify(3)). The zero value sends to $NOTIFY_SOCKET; Quiet sends
// nothing, for a daemon inside another program.
type Notifier struct {
	Quiet bool
}

// Ready says that the start, or a reload, is complete.
func (n Notifier) Ready() error { return n.send(daemon.SdNotifyReady) }

// Stopping says that the end has begun.
func (n Notifier) Stopping() error { return n.send(daemon.SdNotifyStopping) }

// Reloading says that a reload has begun; [Notifier.Ready] ends it.
func (n Notifier) Reloading() error {
	return n.send(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
}

// Alive is the ping that the watchdog waits for.
func (n Notifier) Alive() error { return n.send(daemon.SdNotifyWatchdog) }

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

// WatchdogInterval returns how often the service manager wants [Notifier.Alive]: half of WatchdogSec=; 0: not at all.
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

// Sockets returns the descriptors that the service manager has passed on, by FileDescriptorName=. The caller owns them.
// A second call returns the same.
func Sockets() map[string]*os.File {
	sockets := make(map[string]*os.File)
	for name, files := range activation.FilesWithNames() {
		sockets[name] = files[0]
	}
	return sockets
}
