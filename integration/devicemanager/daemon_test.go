// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// widgetResource is the resource of the widgets.
const widgetResource = "example.org/widget"

// daemon is a metalplugd with recorded hardware.
type daemon struct {
	t     *testing.T
	dir   string // directory of the configuration, the recording and all its own files
	node  string // the kubelet's directory
	log   daemonLog
	cmd   *exec.Cmd
	done  chan struct{} // closed when cmd has ended
	ready chan struct{} // filled each time the daemon has sent READY=1; the buffer is large enough for one test
	store fdStore
	asked bool // the test asked the daemon to end
}

// program returns the path of the tested daemon. If it is missing, the test fails and is never skipped.
func program(t *testing.T) string {
	t.Helper()
	path := os.Getenv("METALPLUGD")
	if path == "" {
		path = filepath.Join("..", "..", "bin", "metalplugd")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("find metalplugd: %v: run make at the top first, or set METALPLUGD", err)
	}
	return path
}

// paths is the beginning of a configuration. It sets the directories of the daemon and of the kubelet.
const paths = `
[paths]
device_plugins = "%[2]s/device-plugins"
pod_resources  = "%[2]s/pod-resources/kubelet.sock"
state = "%[1]s/state"
run   = "%[1]s/run"
cdi   = "%[1]s/cdi"
cgroup = "%[1]s/cgroup"

[hardware]
source = "recording:%[1]s/hardware/recording"
`

// widgets and sprockets are resources for configurations.
const (
	widgets = `
[[resource]]
name  = "example.org/widget"
class = "node"
match = { SUBSYSTEM = "widget" }
`
	sprockets = `
[[resource]]
name  = "example.org/sprocket"
class = "node"
match = { SUBSYSTEM = "sprocket" }
`
)

// newDaemon starts a metalplugd for the node in a directory. At the end of the test, the daemon must stop correctly
// when asked to.
func newDaemon(t *testing.T, node string, hardware []widget) *daemon {
	t.Helper()
	return newDaemonIn(t, shortDir(t), node, hardware)
}

// newDaemonIn is like newDaemon, with a directory for the daemon's own files.
func newDaemonIn(t *testing.T, dir, node string, hardware []widget) *daemon {
	t.Helper()
	return newDaemonOf(t, dir, node, widgets+sprockets, hardware)
}

// newDaemonOf is like newDaemonIn, with other resources.
func newDaemonOf(t *testing.T, dir, node, resources string, hardware []widget) *daemon {
	t.Helper()
	d := &daemon{t: t, dir: dir, node: node, ready: make(chan struct{}, 100)}
	for _, sub := range []string{"state", "run", "cdi", "hardware", "cgroup/kubepods"} {
		d.must(os.MkdirAll(d.path(sub), 0o755))
	}
	d.must(os.WriteFile(d.path("cgroup/cgroup.controllers"), nil, 0o600)) // a cgroup of version 2
	d.configure(resources)
	d.plug(hardware)
	d.listen() // listens until the daemon has stopped
	d.start()
	t.Cleanup(func() {
		d.stop()
		if d.log.race() {
			t.Error("a race in the daemon")
		}
		if t.Failed() {
			t.Logf("metalplugd's last log:\n%s", d.log.String())
		}
	})
	return d
}

// offered returns a node with a daemon whose widgets are visible.
func offered(t *testing.T, o Options, hardware []widget) (*Kubelet, *daemon) {
	t.Helper()
	k := newNode(t, o)
	d := newDaemon(t, k.options.Dir, hardware)
	var n int64
	for _, w := range hardware {
		if w.resource() == widgetResource {
			n++
		}
	}
	sees(t, k, widgetResource, n, n)
	return k, d
}

func (d *daemon) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) path(name string) string { return filepath.Join(d.dir, name) }

// configure writes the configuration for the next start or reload.
func (d *daemon) configure(resources string) {
	d.t.Helper()
	text := fmt.Sprintf(paths, d.dir, d.node) + resources
	d.must(os.WriteFile(d.path("metalplug.toml"), []byte(text), 0o600))
}

// plug replaces the hardware with these widgets. It writes the recording as an editor does.
func (d *daemon) plug(hardware []widget) {
	d.t.Helper()
	d.must(os.WriteFile(d.path("hardware/.new"), []byte(recordingOf(hardware)), 0o600))
	d.must(os.Rename(d.path("hardware/.new"), d.path("hardware/recording")))
}

// start starts the daemon without waiting. The daemon's notifications go to notify.
func (d *daemon) start() {
	d.t.Helper()
	for len(d.ready) > 0 {
		<-d.ready // drop the signal of an earlier start
	}
	d.cmd = exec.Command(program(d.t), "--config", d.path("metalplug.toml"), "--log-level", "debug")
	names, files := d.store.kept()
	if len(files) > 0 { // LISTEN_PID= is the PID of the daemon
		d.cmd = exec.Command("sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`}, d.cmd.Args...)...)
		d.cmd.ExtraFiles = files
	}
	d.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+d.path("notify"), "TMPDIR="+d.dir,
		fmt.Sprintf("LISTEN_FDS=%d", len(files)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	d.must(d.cmd.Start())
	cmd, done := d.cmd, make(chan struct{})
	d.done, d.asked = done, false
	go func() {
		defer close(done)
		_ = cmd.Wait() // ProcessState shows how it ended
	}()
}

// fdStore simulates systemd's store of descriptors for the next process.
type fdStore struct {
	mu    sync.Mutex
	files map[string]*os.File
}

// handle processes a notification.
func (s *fdStore) handle(lines []string, rights []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := ""
	for _, line := range lines {
		if after, ok := strings.CutPrefix(line, "FDNAME="); ok {
			name = after
		}
	}
	if slices.Contains(lines, "FDSTOREREMOVE=1") && s.files[name] != nil {
		s.files[name].Close()
		delete(s.files, name)
	}
	messages, _ := syscall.ParseSocketControlMessage(rights)
	for _, m := range messages {
		fds, _ := syscall.ParseUnixRights(&m)
		for _, fd := range fds {
			if s.files == nil {
				s.files = make(map[string]*os.File)
			}
			s.files[name] = os.NewFile(uintptr(fd), name)
		}
	}
}

// kept returns the content of the store.
func (s *fdStore) kept() (names []string, files []*os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range s.files {
		names, files = append(names, name), append(files, f)
	}
	return names, files
}

// listen receives the notifications instead of systemd. It records when the daemon is ready.
func (d *daemon) listen() {
	d.t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: d.path("notify"), Net: "unixgram"})
	d.must(err)
	d.t.Cleanup(func() { _ = conn.Close() })
	go func() {
		for buf, rights := make([]byte, 4096), make([]byte, 4096); ; {
			n, size, _, _, err := conn.ReadMsgUnix(buf, rights)
			if err != nil {
				return // closed
			}
			d.store.handle(strings.Split(string(buf[:n]), "\n"), rights[:size])
			if slices.Contains(strings.Split(string(buf[:n]), "\n"), "READY=1") {
				d.ready <- struct{}{}
			}
		}
	}()
}

// awaitReady waits until the daemon has notified systemd that it is ready, once for each start or reload.
func (d *daemon) awaitReady() {
	d.t.Helper()
	select {
	case <-d.ready:
	case <-d.done:
		d.t.Fatalf("metalplugd ended before it was ready: %v", d.cmd.ProcessState)
	case <-time.After(patience):
		d.t.Fatalf("metalplugd is not ready after %v", patience)
	}
}

// kill ends the daemon as a crash would.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill() // the daemon may have ended already
	<-d.done
}

// stop ends the daemon as systemd does, and checks that it ends.
func (d *daemon) stop() {
	d.t.Helper()
	select {
	case <-d.done:
		if !d.asked && !d.killed() {
			d.t.Errorf("metalplugd ended by itself: %v", d.cmd.ProcessState)
		}
		return
	default:
	}
	d.asked = true
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.done:
		if code := d.cmd.ProcessState.ExitCode(); code != 0 {
			d.t.Errorf("metalplugd after SIGTERM: %v", d.cmd.ProcessState)
		}
	case <-time.After(patience):
		_ = d.cmd.Process.Signal(syscall.SIGQUIT) // SIGQUIT writes the goroutines to the log
		<-d.done
		d.t.Errorf("metalplugd did not stop within %v of SIGTERM", patience)
	}
}

func (d *daemon) killed() bool {
	status, ok := d.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// cgroup returns the directory of a pod's cgroup. Tests that start and end pods create and remove it.
func (d *daemon) cgroup(uid string) string { return d.path("cgroup/kubepods/pod" + uid) }

// descriptors returns the number of the daemon's open descriptors.
func (d *daemon) descriptors() int {
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
	d.must(err)
	return len(open)
}

// sockets returns the daemon's sockets in the kubelet's directory, and the other files there. A killed kubelet leaves
// dot files there.
func (d *daemon) sockets() (own, others []string) {
	d.t.Helper()
	dir := filepath.Join(d.node, "device-plugins")
	list, err := os.ReadDir(dir)
	d.must(err)
	for _, e := range list {
		switch {
		case strings.HasPrefix(e.Name(), "mp-"):
			own = append(own, filepath.Join(dir, e.Name()))
		case !strings.HasPrefix(e.Name(), "."):
			others = append(others, e.Name())
		}
	}
	return own, others
}
