// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// The daemon is killed after each line that it logs during its start. At level debug it logs each step. The next start must
// succeed, and its first list must contain the devices of all pods.
func TestKilledAtEachStepOfTheStart(t *testing.T) {
	k, d := offered(t, Options{TopologyPolicy: "single-numa-node", NUMANodes: 2}, aligned(4))
	admit(t, k, pod("p1", widgetResource, 1))
	run(t, k, "p1", "main")
	held := assigned(t, k, "p1")
	steps := 0
	for n := 1; ; n++ {
		d.kill()
		sees(t, k, widgetResource, 4, 0)
		if !d.startUntilLine(n, d.kill) {
			break
		}
		steps++
		d.start()
		sees(t, k, widgetResource, 4, 4)
		checkHeld(t, k, "p1")
	}
	d.start()
	sees(t, k, widgetResource, 4, 4)
	checkHeld(t, k, "p1")
	if now := assigned(t, k, "p1"); len(now) != 1 || now[0].ID != held[0].ID {
		t.Errorf("p1 has %v instead of %v", now, held)
	}
	checkSockets(t, d)
	if steps < 5 {
		t.Errorf("it was killed only at %d steps", steps)
	}
	t.Logf("killed at %d steps", steps)
}

// startUntilLine starts the daemon and calls do when it logs its nth line. It returns false if the daemon is ready
// before that.
func (d *daemon) startUntilLine(n int, do func()) (hit bool) {
	d.t.Helper()
	reached, ready := make(chan struct{}), make(chan struct{})
	d.log.watch(n, func() { close(reached) }, func() { close(ready) })
	defer d.log.watch(0, nil, nil)
	d.start()
	select {
	case <-reached:
		do()
		return true
	case <-d.ready:
		<-ready // the line precedes READY=1, so some lines of the start may not have arrived yet
		do()
		select {
		case <-reached:
			return true
		default:
		}
	case <-d.done:
		d.t.Fatalf("metalplugd ended by itself: %v", d.cmd.ProcessState)
	}
	return false
}

// awaitLog waits until the log contains a text.
func (d *daemon) awaitLog(text string) {
	d.t.Helper()
	eventually(d.t, "a line with "+text, func() error {
		if !strings.Contains(d.log.String(), text) {
			return errors.New("none yet")
		}
		return nil
	})
}

// watch calls reached at the nth line from now on, and ready when the daemon is ready. Either may be nil.
func (l *daemonLog) watch(n int, reached, ready func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines, l.reached, l.ready = n, reached, ready
}

// daemonLog is the daemon's log, in which tests can wait for lines. Safe for concurrent use.
type daemonLog struct {
	tail
	mu      sync.Mutex
	lines   int // remaining lines until reached is called
	reached func()
	ready   func()
	raced   bool // the race detector has reported something, possibly in a process that ended by SIGKILL
}

// Write never fails.
func (l *daemonLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	l.raced = l.raced || bytes.Contains(p, []byte("WARNING: DATA RACE"))
	if l.reached != nil {
		if l.lines -= bytes.Count(p, []byte{'\n'}); l.lines <= 0 {
			l.reached()
			l.reached = nil
		}
	}
	if l.ready != nil && bytes.Contains(p, []byte("msg=ready")) {
		l.ready()
		l.ready = nil
	}
	l.mu.Unlock()
	return l.tail.Write(p)
}

// race reports whether the race detector has found a race.
func (l *daemonLog) race() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.raced
}

// If the daemon is stopped, for example by a debugger or a frozen cgroup, the kubelet's list and its restart are not
// delayed. When the daemon continues, it serves again, even if its watch of the directory has overflowed
// (fs.inotify.max_queued_events, 16384 by default).
func TestStoppedProcess(t *testing.T) {
	k, d := offered(t, Options{}, plain(4))
	batch(t, k, widgetResource)
	d.must(d.cmd.Process.Signal(syscall.SIGSTOP))
	sees(t, k, widgetResource, 4, 4)
	if err := k.Restart(within(t)); err != nil {
		t.Fatal(err)
	}
	for n := range 9000 { // each causes a creation, a close and a removal
		name := filepath.Join(k.DevicePlugins(), fmt.Sprintf(".x%d", n))
		d.must(os.WriteFile(name, nil, 0o600))
		d.must(os.Remove(name))
	}
	d.plug(plain(5))
	d.must(d.cmd.Process.Signal(syscall.SIGCONT))
	sees(t, k, widgetResource, 5, 5)
	checkSockets(t, d)
	if err := k.Restart(within(t)); err != nil { // the watch on the directory works
		t.Fatal(err)
	}
	sees(t, k, widgetResource, 5, 5)
}

// A stopped kubelet does not delay the daemon. It accepts no list and answers no registration, but the daemon can still
// reload, end and start. When the kubelet continues, it gets the last list.
func TestStoppedKubelet(t *testing.T) {
	k := newNode(t, Options{})
	d := newDaemon(t, k.options.Dir, plain(4))
	d.awaitReady()
	d.reload(shared(1000)) // a list exceeds the flow control window of the stream (64 KiB, RFC 9113 6.9.2)
	d.awaitReady()
	sees(t, k, widgetResource, 4000, 4000)

	d.must(k.Signal(syscall.SIGSTOP))
	for n := 10; n < 16; n++ {
		d.plug(append(plain(4), widget{n: n, numa: -1}))
		d.awaitLog(fmt.Sprintf("device=node-widget-W%d-", n))
	}
	d.plug(plain(2))
	d.awaitLog("msg=\"device gone\" device=node-widget-W3-")
	d.must(k.Signal(syscall.SIGCONT))
	allocatable(t, k, 2000)

	d.must(k.Signal(syscall.SIGSTOP))
	d.reload(shared(1000) + sprockets) // metalplugd cannot register the resource while the kubelet is stopped
	d.awaitReady()
	d.stop()
	d.plug(append(plain(4), widget{kind: "sprocket", numa: -1}))
	d.start()
	d.awaitReady()
	d.must(k.Signal(syscall.SIGCONT))
	sees(t, k, widgetResource, 4000, 4000)
	sees(t, k, "example.org/sprocket", 1, 1)
	checkSockets(t, d)
}
