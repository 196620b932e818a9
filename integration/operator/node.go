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

// patience is how long a node may take for what must happen.
const patience = 30 * time.Second

// node is a machine of recorded hardware with the programs as they are installed, in a directory of its own. The daemon
// reads try.toml there, as in docs/operating.md.
type node struct {
	programs string // the directory of metalplugd and metalplugctl
	dir      string
	daemon   *exec.Cmd
	stderr   bytes.Buffer  // of the daemon, once it has ended
	notify   *net.UnixConn // the service manager's end
	ended    <-chan error  // the exit of the daemon, or nil while it does not run
}

// gpuServer is the hardware. It has eight GPUs, eight InfiniBand adapters and eight NVMe drives, of which the system has
// one.
func gpuServer() string {
	all := recording.Bundled()
	i := slices.IndexFunc(all, func(r recording.Named) bool { return r.Name == "gpu-server" })
	return string(all[i].Text)
}

// newNode makes a node. It adds resources to the configuration.
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
	if builtin { // the disks are off until they are named
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

// path is where a file of the node is.
func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// plug gives the node other hardware, in one piece.
func (n *node) plug(hardware string) error {
	return errors.Join(
		os.WriteFile(n.path("next"), []byte(hardware), 0o600),
		os.Rename(n.path("next"), n.path("gpu-server.umockdev")))
}

// boot starts the daemon and waits until it says that it is ready.
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

// listen reads what the daemon tells the service manager, until the daemon is shut down.
func (n *node) listen(ready chan<- struct{}) {
	for message := make([]byte, 4096); ; {
		size, err := n.notify.Read(message)
		if err != nil {
			return
		}
		if strings.Contains(string(message[:size]), "READY=1") {
			select {
			case ready <- struct{}{}:
			default: // it has reloaded
			}
		}
	}
}

// shutdown stops the daemon, if it runs, and returns how it has ended.
func (n *node) shutdown() error {
	if n.ended == nil {
		return nil
	}
	_ = n.daemon.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	err := <-n.ended
	n.notify.Close()
	n.ended = nil
	return err
}

// remove stops the daemon and removes the directory.
func (n *node) remove() error { return errors.Join(n.shutdown(), os.RemoveAll(n.dir)) }

// command is metalplugctl with what is behind its name on a command line.
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
