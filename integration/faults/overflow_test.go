// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWatchOverflow causes more events in the kubelet's directory than the queue of a stopped daemon's watch can
// hold. Then it removes the daemon's sockets. No event reports this and no stream ends. So only the overflow makes the
// daemon check its sockets.
func TestWatchOverflow(t *testing.T) {
	noLeaks(t)
	m := newKillableDaemon(t, wholeText)
	m.waitShown(diskResource, m.disks[0].id(), "Healthy")
	sockets, err := filepath.Glob(filepath.Join(m.setup.dir, "mp-*"))
	if err != nil || len(sockets) != 2 {
		t.Fatalf("the sockets are %v: %v", sockets, err)
	}
	m.halt()
	m.flood(queueSize(t))
	for _, name := range sockets {
		m.must(os.Remove(name))
	}
	m.must(m.cmd.Process.Signal(unix.SIGCONT))
	if err := eventually(func() error { return connect(sockets) }); err != nil {
		t.Fatal(err)
	}
	if err := eventually(m.checkOverflow); err != nil {
		t.Error(err)
	}
	m.kubeletStop() // only the watch on the directory can report this
	m.kubeletStart()
	m.waitShown(diskResource, m.disks[0].id(), "Healthy")
}

// halt stops the daemon with SIGSTOP, and returns when it has stopped.
func (m *killableDaemon) halt() {
	m.t.Helper()
	m.must(m.cmd.Process.Signal(unix.SIGSTOP))
	var status unix.WaitStatus
	_, err := unix.Wait4(m.cmd.Process.Pid, &status, unix.WUNTRACED, nil)
	m.must(err)
	if !status.Stopped() {
		m.t.Fatalf("it has not stopped but ended: %#x", status)
	}
}

// flood causes at least n events in the kubelet's directory that do not concern the daemon. A rename is two events. All
// events differ, because the kernel would merge equal ones (inotify(7)).
func (m *killableDaemon) flood(n int) {
	m.t.Helper()
	from, to := filepath.Join(m.setup.dir, ".flood-0"), filepath.Join(m.setup.dir, ".flood-1")
	m.must(os.WriteFile(from, nil, 0o600))
	for range n/2 + 1 {
		m.must(os.Rename(from, to))
		from, to = to, from
	}
}

// checkOverflow returns an error if no queue has overflowed, because the test would then prove nothing.
func (m *killableDaemon) checkOverflow() error {
	if strings.Contains(m.journal.String(), `msg="kubelet directory watch" err="fsnotify: queue or buffer overflow"`) {
		return nil
	}
	return errors.New("nothing has overflowed")
}

// queueSize returns the maximum number of events in an inotify queue (inotify(7)).
func queueSize(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// connect returns an error that lists the sockets without a server.
func connect(sockets []string) error {
	for _, name := range sockets {
		conn, err := net.Dial("unix", name)
		if err != nil {
			return fmt.Errorf("its socket is not back: %w", err)
		}
		conn.Close()
	}
	return nil
}
