// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// heldSockets are the sockets of metalplug-dra.socket.
var heldSockets = []string{"/var/lib/kubelet/plugins/metalplug.io/dra.sock", "/var/lib/kubelet/plugins_registry/metalplug.io-reg.sock"}

// hold listens on the sockets of the driver in the node's mount namespace until the end of the story, as systemd does.
func (s *story) hold(node *Node) (files []*os.File) {
	s.Helper()
	s.Cleanup(func() {
		for _, f := range files {
			f.Close()
		}
	})
	s.must(node.inside(func() error {
		for _, path := range heldSockets {
			if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
				return err
			}
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				return err
			}
			l.SetUnlinkOnClose(false)
			f, err := l.File()
			if err = errors.Join(err, l.Close()); err != nil {
				return err
			}
			files = append(files, f)
		}
		return nil
	}))
	return files
}

// inside calls do in the node's mount namespace. Afterwards the thread returns to its own namespace and directory. The
// thread must not end, because the kernel would then kill the programs that the thread has started (PR_SET_PDEATHSIG).
func (n *Node) inside(do func() error) (err error) {
	var ends []int // the directory and the namespace of this thread, and the namespace of the node
	for _, path := range []string{".", "/proc/thread-self/ns/mnt", fmt.Sprintf("/proc/%d/ns/mnt", n.runtime.cmd.Process.Pid)} {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		ends = append(ends, fd)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Setns(ends[2], unix.CLONE_NEWNS); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Setns(ends[1], unix.CLONE_NEWNS), unix.Fchdir(ends[0])) }()
	return do()
}

// startHeld starts metalplug-dra with sockets that it does not own (sd_listen_fds(3)).
func (s *story) startHeld(node *Node, files []*os.File) *process {
	s.Helper()
	p, err := spawnWith(files, node.dir, "metalplug-dra", "nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", node.runtime.cmd.Process.Pid), "--",
		"sh", "-c", `export LISTEN_PID=$$; exec "$@"`, "sh", "env", fmt.Sprintf("LISTEN_FDS=%d", len(files)), "TMPDIR=/run/tmp",
		"/run/bin/metalplug-dra", "--kubeconfig="+node.cluster.File("node-"+node.Name+".kubeconfig"), "--node="+node.Name)
	return s.driver(node, p, err)
}

func TestClaimHeldSockets(t *testing.T) {
	s := tell(t, "metalplug-dra is restarted while systemd holds its sockets, and the pod that waits for it starts at once")
	node := s.start(NodeOptions{Name: s.label(""), Recording: widgets(2), Resources: byClaim})
	s.createClass(node.Name, "")
	files := s.hold(node)
	driver := s.startHeld(node, files)
	s.published(node, 2)
	first := claiming(node, s.label("-0"))
	s.create(first)
	s.phase(first.Name, corev1.PodRunning)
	s.step("a pod runs with a claim")
	driver.kill()
	second := claiming(node, s.label("-1"))
	s.create(second)
	s.await("the scheduler has not bound the pod", func(context.Context) error {
		if p := s.get(second.Name); p.Spec.NodeName == "" {
			return errors.New("it has no node")
		}
		return nil
	})
	began := time.Now()
	s.startHeld(node, files)
	s.phase(second.Name, corev1.PodRunning)
	s.step("the driver was started again, and the next pod runs %v later", time.Since(began).Round(time.Millisecond))
	s.prepared(second.Name)
	s.remove(first.Name)
	s.remove(second.Name)
	s.step("both pods are gone")
}
