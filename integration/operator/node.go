// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/metalplug/metalplug/udev/recording"
)

// patience is the maximum time that a node may take for an expected state.
const patience = 30 * time.Second

// node is a machine with recorded hardware and the installed programs, in its own directory. The daemon reads try.toml
// there.
type node struct {
	programs string // the directory of metalplugd and metalplugctl
	dir      string
	daemon   *exec.Cmd
	stderr   bytes.Buffer  // standard error of the daemon, to read after it has ended
	notify   *net.UnixConn // the socket of the service manager
	ended    <-chan error  // the result of the daemon, or nil while it does not run
}

// gpuServer returns the hardware. It has eight GPUs, eight InfiniBand adapters and eight NVMe drives, one of which the
// system uses.
func gpuServer() string {
	all := recording.Bundled()
	i := slices.IndexFunc(all, func(r recording.BundledFile) bool { return r.Name == "gpu-server" })
	return string(all[i].Text)
}

// newNode returns a node whose configuration contains the given resources.
func newNode(programs, hardware, resources string) (*node, error) {
	programs, err := filepath.Abs(programs)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "mp") // short, because the path of a unix socket has 107 bytes
	if err != nil {
		return nil, err
	}
	n := &node{programs: programs, dir: dir}
	builtin := resources == ""
	if builtin { // disks are off until they are configured
		resources = "[[resource]]\nname = \"metalplug.io/nvme\"\nreset.scrub = \"none\"\n"
	}
	configuration := fmt.Sprintf(`builtin = %v
hardware.source = "recording:gpu-server.umockdev"
[paths]
device_plugins = %q
pod_resources = %q
state = %q
run = %q
cdi = %q
%s`, builtin, n.path("plugins"), n.path("pods.sock"), n.path("state"), n.path("run"), n.path("cdi"), resources)
	return n, errors.Join(
		os.Mkdir(n.path("plugins"), 0o755), n.plug(hardware),
		os.WriteFile(n.path("try.toml"), []byte(configuration), 0o600))
}

// path returns the path of a file of the node.
func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// plug replaces the hardware of the node atomically.
func (n *node) plug(hardware string) error {
	return errors.Join(
		os.WriteFile(n.path("next"), []byte(hardware), 0o600),
		os.Rename(n.path("next"), n.path("gpu-server.umockdev")))
}

// boot starts the daemon and waits until it reports that it is ready.
func (n *node) boot() error {
	var err error
	if n.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: n.path("notify"), Net: "unixgram"}); err != nil {
		return err
	}
	n.daemon = exec.Command(filepath.Join(n.programs, "metalplugd"), "--config", "try.toml")
	n.daemon.Dir, n.daemon.Stderr = n.dir, &n.stderr
	n.daemon.Env = append(os.Environ(), "NOTIFY_SOCKET="+n.path("notify"))
	if err := n.daemon.Start(); err != nil {
		n.notify.Close()
		return fmt.Errorf("%w: \"make\" builds it", err)
	}
	ready, ended := make(chan struct{}, 1), make(chan error, 1)
	go n.listen(ready)
	go func() { ended <- n.daemon.Wait() }()
	n.ended = ended
	select {
	case <-ready:
		return nil
	case err := <-ended:
		ended <- err
		return fmt.Errorf("start the daemon: %w: %s", err, n.stderr.String())
	case <-time.After(patience):
		return errors.New("start the daemon: it is never ready")
	}
}

// listen reads the daemon's notifications to the service manager until the daemon is shut down.
func (n *node) listen(ready chan<- struct{}) {
	for message := make([]byte, 4096); ; {
		size, err := n.notify.Read(message)
		if err != nil {
			return
		}
		if strings.Contains(string(message[:size]), "READY=1") {
			select {
			case ready <- struct{}{}:
			default: // the daemon has reloaded
			}
		}
	}
}

// shutdown stops the daemon, if it runs, and returns its result.
func (n *node) shutdown() error {
	if n.ended == nil {
		return nil
	}
	_ = n.daemon.Process.Signal(syscall.SIGTERM) // the daemon may have ended already
	err := <-n.ended
	n.notify.Close()
	n.ended = nil
	return err
}

// remove stops the daemon and removes the directory.
func (n *node) remove() error { return errors.Join(n.shutdown(), os.RemoveAll(n.dir)) }

// command returns a metalplugctl command with the given arguments.
func (n *node) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(n.programs, "metalplugctl"), append([]string{"--socket", "run/control.sock"}, args...)...)
	c.Dir = n.dir
	c.Env = append(os.Environ(), "TZ=UTC")
	return c
}

// ctl runs metalplugctl and returns what it prints and its exit code.
func (n *node) ctl(ctx context.Context, args ...string) (output string, code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := n.command(ctx, args...).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return string(out), exit.ExitCode(), nil
	}
	return string(out), 0, err
}
