// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// up is the program cmd/up in its own directory.
type up struct {
	*story
	dir    string
	before traces
}

func (u *up) command(ctx context.Context, release string) *exec.Cmd {
	recordings := filepath.Join("..", "..", "udev", "recording", "bundled")
	c := exec.CommandContext(ctx, filepath.Join("..", "..", "bin", "cluster", "up"),
		"--dir", u.dir, "--programs", filepath.Join("..", "..", "bin"), "--release", release,
		filepath.Join(recordings, "gpu-server.umockdev"), filepath.Join(recordings, "nvme-blank.umockdev"))
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGINT) }
	return c
}

// gone waits until the cluster has left nothing behind.
func (u *up) gone() {
	u.Helper()
	u.await("the cluster is not gone", func(context.Context) error { return u.before.compare(u.dir) })
}

func TestUp(t *testing.T) {
	s := tell(t, "a person gets a cluster of two nodes, in which kubectl shows the devices, and it leaves nothing")
	u := &up{story: s, dir: programs().Dir + "p"}
	var err error
	u.before, err = takeTraces()
	s.must(err)
	c := u.command(s.Context(), release())
	output, err := c.StdoutPipe()
	s.must(err)
	c.Stderr = os.Stderr
	s.must(c.Start())
	s.Cleanup(func() {
		_ = c.Process.Kill() // it may have ended
		_ = c.Wait()         // returns the error of a killed process
		u.gone()
	})
	u.prints(output, "Ctrl-C ends")
	s.step("it is up")
	for node, want := range map[string]string{"node1": "nvidia.com/gpu", "node2": "metalplug.io/nvme"} {
		shown, err := u.kubectl("describe", "node", node)
		if err != nil || !strings.Contains(shown, want) {
			s.Errorf("kubectl describe node %s: %v:\n%s", node, err, shown)
		}
	}
	s.step("kubectl describe node shows the devices")
	if out, err := u.command(s.Context(), release()).CombinedOutput(); err == nil || !strings.Contains(string(out), "another cluster runs in "+u.dir) {
		s.Errorf("a second cluster in the same directory: %v: %s", err, out)
	}
	s.must(c.Process.Kill())
	u.gone()
	s.step("it was killed, and nothing is left")
}

// prints waits until a line of the output begins with this text. It does not read the following lines.
func (u *up) prints(output io.Reader, text string) {
	u.Helper()
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), text) {
			return
		}
	}
	u.Fatalf("cluster-up has ended and has not printed %q", text)
}

func (u *up) kubectl(args ...string) (string, error) {
	c := exec.CommandContext(u.Context(), filepath.Join(u.dir, "kubectl"), args...)
	c.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(u.dir, "admin.kubeconfig"))
	out, err := c.CombinedOutput()
	return string(out), err
}

// A user may press Ctrl-C while a program starts.
func TestInterrupted(t *testing.T) {
	s := tell(t, "a cluster that is interrupted at its start leaves nothing, and one without a program says so")
	u := &up{story: s, dir: programs().Dir + "i"}
	var err error
	u.before, err = takeTraces()
	s.must(err)
	for _, after := range []time.Duration{0, 50 * time.Millisecond, time.Second, 3 * time.Second, 5 * time.Second} {
		ctx, cancel := context.WithTimeout(s.Context(), after)
		c := u.command(ctx, release())
		out, err := c.CombinedOutput()
		cancel()
		if code := c.ProcessState.ExitCode(); err != nil && code > 0 {
			s.Errorf("interrupted after %v: %v: %s", after, err, out)
		}
		u.gone()
		s.step("it was interrupted after %v", after)
	}
	out, err := u.command(s.Context(), "v9.9").CombinedOutput()
	if want := "make cluster-programs RELEASE=v9.9"; err == nil || !strings.Contains(string(out), want) {
		s.Errorf("without a program: %v: %s", err, out)
	}
	if _, err := os.Stat(u.dir); err == nil {
		s.Error(fmt.Errorf("%s is there", u.dir))
	}
}
