// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//go:embed node.sh
var nodeScript string

// stopLimit is the time limit for the stop of metalplugd, as in its unit.
const stopLimit = 20 * time.Second

// kubeletDefault is the value of NodeOptions.Status for the default intervals of the kubelet.
const kubeletDefault = time.Duration(-1)

// NodeOptions describe a node.
type NodeOptions struct {
	Name       string        // a DNS label
	Recording  string        // text of the recorded hardware
	Disk       string        // a block device of the machine that metalplugd sees instead of the recording, or empty
	Resources  string        // [[resource]] tables of metalplugd's configuration, or empty to offer the disks
	Status     time.Duration // time between two status updates of the kubelet, by default one second, or kubeletDefault
	Topology   string        // policy of the topology manager on a machine with two NUMA nodes, or empty
	Containerd bool          // containerd and runc run the containers from FillImage, in cgroups of the machine
}

// Node is a node with its own /var, /run and /dev. Its programs share a mount namespace.
type Node struct {
	Name string

	cluster *Cluster
	release string // release of the kubelet
	program string // program of metalplugd, in the directory of the programs
	dir     string
	options NodeOptions
	ip      string // address of the kubelet's server
	port    int
	runtime *process
	kubelet *process
	daemon  *process
	notify  *net.UnixConn // systemd's end of metalplugd's socket
	ready   chan struct{} // receives a value when metalplugd sends READY=1
}

// StartNode starts a node and returns when the API server shows it as Ready. metalplugd has registered by then.
func (c *Cluster) StartNode(ctx context.Context, o NodeOptions) (*Node, error) {
	n := &Node{Name: o.Name, cluster: c, release: c.options.Release, program: "metalplugd", dir: c.File(o.Name), options: o}
	c.nodes = append(c.nodes, n)
	var err error
	if n.ip, err = ownAddress(); err != nil {
		return nil, err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	n.port = ports[0]
	if err := c.authority.client("node-"+n.Name, "system:node:"+n.Name, "system:nodes"); err != nil {
		return nil, err
	}
	for _, dir := range []string{"var/lib/kubelet/manifests", "var/lib/kubelet/device-plugins", "var/lib/kubelet/pod-resources", "var/lib/metalplug", "var/log", "var/tmp", "var/hardware"} {
		if err := os.MkdirAll(n.path(dir), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(n.path("var/lib/kubelet/config.yaml"), []byte(n.kubeletConfig()), 0o600); err != nil {
		return nil, err
	}
	if err := n.Configure(o.Resources); err != nil {
		return nil, err
	}
	if o.Topology != "" {
		if err := n.split(); err != nil {
			return nil, err
		}
	}
	if err := n.boot(ctx); err != nil {
		return nil, err
	}
	return n, n.AwaitReady(ctx)
}

// path returns the path on the machine of a file of the node.
func (n *Node) path(name string) string { return filepath.Join(n.dir, name) }

// boot starts the container runtime, metalplugd and the kubelet with an empty /run and /dev.
func (n *Node) boot(ctx context.Context) error {
	if err := unmountRun(n.dir); err != nil {
		return err
	}
	for _, dir := range []string{"dev", "run"} {
		if err := os.RemoveAll(n.path(dir)); err != nil {
			return err
		}
	}
	if err := os.Mkdir(n.path("run"), 0o755); err != nil {
		return err
	}
	// On a real node, /run is in memory, too.
	if err := unix.Mount("tmpfs", n.path("run"), "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mount /run of %s: %w", n.Name, err)
	}
	for _, dir := range []string{"dev", "run/bin", "run/sysctl", "run/tmp", "run/cdi", "run/containerd", "run/cgroup/kubepods"} {
		if err := os.MkdirAll(n.path(dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(n.path("run/cgroup/cgroup.controllers"), nil, 0o600); err != nil { // the file shows that this is cgroup v2
		return err
	}
	if err := errors.Join(n.Plug(n.options.Recording), n.attach(), n.listen()); err != nil {
		return err
	}
	if err := n.startRuntime(ctx); err != nil {
		return err
	}
	if err := n.StartDaemon(ctx); err != nil {
		return err
	}
	return n.StartKubelet()
}

// startRuntime starts the container runtime in a new mount namespace, which becomes the namespace of the node. It waits
// until the runtime is ready.
func (n *Node) startRuntime(ctx context.Context) error {
	cgroup := ""
	if n.options.Containerd {
		cgroup = n.cgroup()
		if err := n.prepareContainerd(); err != nil {
			return err
		}
	}
	var err error
	if n.runtime, err = spawn(n.dir, "cri", "unshare", "--mount", "--propagation", "private", "--",
		"sh", "-c", nodeScript, "node.sh", n.dir, n.cluster.options.Programs, cgroup, n.options.Disk); err != nil {
		return err
	}
	if err := poll(ctx, "the container runtime is not ready", func(context.Context) error {
		if !n.runtime.alive() {
			return fatal{n.runtime.ended()}
		}
		_, err := os.Stat(n.path("run/containerd/containerd.sock"))
		return err
	}); err != nil || !n.options.Containerd {
		return err
	}
	return n.importImage()
}

// Reboot kills all processes of the node and boots it. It returns when it has started the kubelet.
func (n *Node) Reboot(ctx context.Context) error {
	if err := n.crash(); err != nil {
		return err
	}
	return n.boot(ctx)
}

func (n *Node) crash() error {
	for _, p := range []*process{n.kubelet, n.daemon, n.runtime} {
		p.kill()
	}
	if n.notify != nil {
		n.notify.Close()
	}
	if n.options.Containerd {
		return n.removeCgroup()
	}
	return nil
}

// enter starts a program in the node's mount namespace. Environment variables may precede the path of the program.
func (n *Node) enter(name string, command ...string) (*process, error) {
	space := fmt.Sprintf("--mount=/proc/%d/ns/mnt", n.runtime.cmd.Process.Pid)
	return spawn(n.dir, name, append([]string{"nsenter", space, "--", "env", "TMPDIR=/run/tmp"}, command...)...)
}

// UpgradeKubelet replaces the kubelet with the kubelet of another release. It does not wait until the kubelet is ready.
func (n *Node) UpgradeKubelet(release string) error {
	n.KillKubelet()
	n.release = release
	return n.StartKubelet()
}

// StartKubelet starts the kubelet. It does not wait until the kubelet is ready.
func (n *Node) StartKubelet() error {
	var err error
	n.kubelet, err = n.enter("kubelet", append([]string{
		"/run/bin/cluster/kube-" + n.release, "kubelet", "--config=/var/lib/kubelet/config.yaml",
		"--kubeconfig=" + n.cluster.File("node-"+n.Name+".kubeconfig"), "--hostname-override=" + n.Name, "--node-ip=" + n.ip,
	}, gates(n.release)...)...)
	return err
}

// KillKubelet ends the kubelet like a crash.
func (n *Node) KillKubelet() { n.kubelet.kill() }

// StartDaemon starts metalplugd and waits until metalplugd is ready. systemd also does this before it starts the
// kubelet.
func (n *Node) StartDaemon(ctx context.Context) error {
	for len(n.ready) > 0 {
		<-n.ready // discard the value of an earlier start
	}
	var err error
	if n.daemon, err = n.enter("metalplugd", "NOTIFY_SOCKET=/run/notify",
		"/run/bin/"+n.program, "--config=/var/lib/metalplug.toml", "--log-level=debug"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	select {
	case <-n.ready:
		return nil
	case <-n.daemon.done:
		return n.daemon.ended()
	case <-ctx.Done():
		return fmt.Errorf("metalplugd is not ready: %w", ctx.Err())
	}
}

// listen receives metalplugd's notifications in place of systemd, until the socket is closed.
func (n *Node) listen() error {
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: n.path("run/notify"), Net: "unixgram"})
	if err != nil {
		return err
	}
	n.notify, n.ready = notify, make(chan struct{}, 1)
	go func() {
		for message := make([]byte, 4096); ; {
			size, err := notify.Read(message)
			if err != nil {
				return
			}
			if slices.Contains(strings.Split(string(message[:size]), "\n"), "READY=1") {
				select {
				case n.ready <- struct{}{}:
				default: // the end of a reload, for which StartDaemon does not wait
				}
			}
		}
	}()
	return nil
}

// UpgradeDaemon replaces metalplugd with another program, as a package does, and waits until the new program is ready.
func (n *Node) UpgradeDaemon(ctx context.Context, program string) error {
	if err := n.StopDaemon(); err != nil {
		return err
	}
	n.program = program
	return n.StartDaemon(ctx)
}

// RemoveDaemon stops metalplugd and removes its files, as a purge of the package does.
func (n *Node) RemoveDaemon() error {
	if err := n.StopDaemon(); err != nil {
		return err
	}
	for _, pattern := range []string{"var/lib/metalplug", "run/metalplug*", "run/cdi/metalplug*.json", "var/lib/kubelet/device-plugins/mp-*.sock"} {
		files, err := filepath.Glob(n.path(pattern))
		if err != nil {
			return err
		}
		for _, file := range files {
			if err := os.RemoveAll(file); err != nil {
				return err
			}
		}
	}
	return nil
}

// StopDaemon stops metalplugd like systemd. It returns an error if metalplugd does not stop cleanly.
func (n *Node) StopDaemon() error {
	if n.daemon == nil {
		return nil
	}
	if !n.daemon.alive() {
		return fmt.Errorf("metalplugd on %s ended too early: %v", n.Name, n.daemon.cmd.ProcessState)
	}
	_ = n.daemon.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-n.daemon.done:
	case <-time.After(stopLimit):
		n.daemon.kill()
		return fmt.Errorf("metalplugd on %s did not stop within %v", n.Name, stopLimit)
	}
	if code := n.daemon.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("metalplugd on %s: %v", n.Name, n.daemon.cmd.ProcessState)
	}
	return nil
}

// Stop stops metalplugd, kills the other programs, and deletes the Node object and the files.
func (n *Node) Stop() error {
	err := errors.Join(n.StopDaemon(), n.crash())
	n.cluster.nodes = slices.DeleteFunc(n.cluster.nodes, func(other *Node) bool { return other == n })
	if n.cluster.Client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
		defer cancel()
		gone := n.cluster.Client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{})
		if gone != nil && !apierrors.IsNotFound(gone) {
			err = errors.Join(err, gone)
		}
	}
	return errors.Join(err, unmountRun(n.dir), os.RemoveAll(n.dir))
}

// unmountRun unmounts the /run of the node with this directory, if it is mounted.
func unmountRun(dir string) error {
	run := filepath.Join(dir, "run")
	err := unix.Unmount(run, unix.MNT_DETACH)
	if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) { // EINVAL: not a mount point
		return nil
	}
	return fmt.Errorf("unmount %s: %w", run, err)
}

// AwaitReady waits until the API server shows the node as Ready.
func (n *Node) AwaitReady(ctx context.Context) error {
	return poll(ctx, n.Name+" is not Ready", func(ctx context.Context) error {
		if !n.kubelet.alive() {
			return fatal{fmt.Errorf("%s: %w", n.Name, n.kubelet.ended())}
		}
		node, err := n.cluster.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == v1.NodeReady && c.Status == v1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", node.Status.Conditions)
	})
}

// Static writes the manifest of a static pod. It removes the file if manifest is empty.
func (n *Node) Static(name string, manifest []byte) error {
	file := n.path("var/lib/kubelet/manifests/" + name + ".yaml")
	if manifest == nil {
		return os.Remove(file)
	}
	return replace(file, manifest)
}

// Ctl runs metalplugctl on the node and returns its output. The error contains the exit code.
func (n *Node) Ctl(ctx context.Context, args ...string) (string, error) {
	c := exec.CommandContext(ctx, n.cluster.program("metalplugctl"), args...)
	c.Env = append(os.Environ(), "METALPLUG_SOCKET="+n.path("run/metalplug/control.sock"))
	out, err := c.CombinedOutput()
	return string(out), err
}

// kubeletConfig returns the configuration of the kubelet. With it, the kubelet creates cgroups only for real containers, and
// does not change the machine's iptables. It reports its status every second instead of every ten seconds, so that stories
// do not wait for the status.
func (n *Node) kubeletConfig() string {
	return `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: ` + n.ip + `
port: ` + strconv.Itoa(n.port) + `
healthzPort: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: ` + n.cluster.File("ca.crt") + `}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
staticPodPath: /var/lib/kubelet/manifests
volumePluginDir: /var/lib/kubelet/volume-plugins
fileCheckFrequency: 1s
` + n.statusFrequency() + `
cgroupDriver: cgroupfs
` + n.cgroups() + `
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
oomScoreAdj: 0
evictionHard: {memory.available: 1Mi}
topologyManagerPolicy: ` + cmp.Or(n.options.Topology, "none") + `
`
}

// cgroups returns the keys of kubeletConfig for cgroups.
func (n *Node) cgroups() string {
	if n.options.Containerd {
		return "cgroupsPerQOS: true\ncgroupRoot: /" + n.cgroup()
	}
	return "cgroupsPerQOS: false"
}

// statusFrequency returns the key of kubeletConfig for NodeOptions.Status. With this key, the kubelet also reports a status
// that has not changed.
func (n *Node) statusFrequency() string {
	if n.options.Status == kubeletDefault {
		return ""
	}
	return "nodeStatusUpdateFrequency: " + cmp.Or(n.options.Status, time.Second).String()
}

// replace replaces a file in one step, as an editor does.
func replace(file string, text []byte) error {
	next := filepath.Join(filepath.Dir(file), ".next")
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, file)
}

// removeMissing removes a file if it exists.
func removeMissing(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
