// SPDX-License-Identifier: Apache-2.0

package reset_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/need"
)

// lockProcess starts a process that takes the lock of a device, and returns its output.
func lockProcess(t *testing.T, dir, sysPath string, apart bool) (said string, end func()) {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "locking")
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(link, dir, sysPath)
	if apart {
		c.Args = append(c.Args, "apart")
		c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	}
	c.Stderr = os.Stderr
	stdin, err1 := c.StdinPipe()
	stdout, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2, c.Start()); err != nil {
		if errors.Is(err, unix.EPERM) {
			need.Lacks(t, "root", "namespaces cannot be made here: %v", err)
		}
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	end = func() {
		stdin.Close()
		c.Wait()
	}
	t.Cleanup(end)
	return strings.TrimSpace(line), end
}

// TestOnlyOne checks that only one of two instances can work on a device, even if each has its own sysfs.
func TestOnlyOne(t *testing.T) {
	if os.Geteuid() != 0 {
		need.Lacks(t, "root", "only root can make namespaces")
	}
	device, err := filepath.EvalSymlinks("/sys/class/mem/null")
	if err != nil {
		t.Fatal(err)
	}
	for _, apart := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "locks")
		said, end := lockProcess(t, dir, device, apart)
		if said != "locked" {
			t.Fatalf("the first of two: %s", said)
		}
		if second, _ := lockProcess(t, dir, device, apart); second != "another request for "+device+" is in progress" {
			t.Errorf("apart %v: the second of two: %s", apart, second)
		}
		if other, _ := lockProcess(t, dir, filepath.Join(filepath.Dir(device), "zero"), apart); other != "locked" {
			t.Errorf("apart %v: another device: %s", apart, other)
		}
		end()
		if third, _ := lockProcess(t, dir, device, apart); third != "locked" {
			t.Errorf("apart %v: after the first has ended: %s", apart, third)
		}
	}
}
