// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/integration/leak"
)

// The test binary also acts as other programs. Under the name metalplug-holders it acts as that program. With a role as its
// first argument, it holds a device, or inspects processes with few capabilities.

func init() {
	runtime.LockOSThread() // TestMain needs the first thread, which represents the process to others
}

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "metalplug-holders" {
		if os.Getenv("CLOCK") != "" {
			*cgroup.Clock = time.Now
		}
		if err := cgroup.Serve(cmp.Or(os.Getenv("PROC"), "/proc")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if os.Getenv("TELL_MEMORY") != "" {
			text, _ := os.ReadFile("/proc/self/status")
			os.Stderr.Write(text)
		}
		os.Exit(0)
	}
	maps.Copy(roles, attacks)
	if len(os.Args) > 1 {
		if role := roles[os.Args[1]]; role != nil {
			if err := role(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			fmt.Println("ready")
			wait()
		}
	}
	runtime.UnlockOSThread()
	os.Exit(leak.Main(m))
}

// roles are the actions of a child process before it reports that it is ready.
var roles = map[string]func(args []string) error{
	"role=open":   func(args []string) error { return open(args[0]) },
	"role=map":    func(args []string) error { return mapAndClose(args[0]) },
	"role=look":   look,
	"role=see":    see,
	"role=idle":   func([]string) error { return nil },
	"role=path":   func(args []string) error { return openWith(args[0], unix.O_PATH) },
	"role=ioctl":  func(args []string) error { return openWith(args[0], unix.O_ACCMODE) }, // neither for reading nor for writing
	"role=nobody": func(args []string) error { return errors.Join(open(args[0]), becomeNobody()) },
	"role=thread": func(args []string) error {
		return onThread(func() error { return errors.Join(unix.Unshare(unix.CLONE_FILES), open(args[0])) })
	},
	"role=widow": func(args []string) error {
		return onThread(func() error {
			if err := errors.Join(open(args[0]), mapAndClose(args[1])); err != nil {
				return err
			}
			fmt.Println("ready")
			wait()
			return nil
		})
	},
}

// wait blocks until the process is killed.
func wait() {
	for {
		unix.Pause()
	}
}

func open(node string) error { return openWith(node, unix.O_RDONLY) }

func openWith(node string, flags int) error {
	_, err := unix.Open(node, flags, 0)
	return err
}

func mapAndClose(node string) error {
	fd, err := unix.Open(node, unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	// A shared mapping of /dev/zero would not refer to the device (drivers/char/mem.c, mmap_zero).
	if _, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE); err != nil {
		return err
	}
	return unix.Close(fd)
}

// becomeNobody gives the process another user, as in an unprivileged pod. Its directory in procfs then belongs to that
// user (proc_pid(5)).
func becomeNobody() error {
	return errors.Join(unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0), syscall.Setgid(65534), syscall.Setuid(65534), unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
}

// onThread runs f on another thread. If f does not return, the first thread ends.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
		wait()
	}()
	if os.Args[1] == "role=widow" {
		syscall.Syscall(unix.SYS_EXIT, 0, 0, 0) // ends the thread, not the process
	}
	return <-done
}

// look inspects the processes in the first argument, with only the capabilities in the mask in the second argument. The
// mask is the bounding set for the capabilities that a program of root gets (capabilities(7)).
func look(args []string) error {
	keep, err := strconv.ParseUint(args[1], 0, 64)
	if err != nil {
		return err
	}
	for i := 0; i <= unix.CAP_LAST_CAP; i++ {
		if keep&(1<<i) == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(i), 0, 0, 0); err != nil {
				return err
			}
		}
	}
	own, err := os.Executable()
	if err != nil {
		return err
	}
	return unix.Exec(own, []string{own, "role=see", args[0]}, os.Environ())
}

// see prints which processes in the argument hold the devices.
func see(args []string) error {
	a, err := cgroup.Holders(args[0], []cgroup.Number{full, zero}, 0)
	text, _ := json.Marshal(a)
	fmt.Printf("%s %v\n", text, err)
	return nil
}

// child starts the test binary in a role. It blocks until the process is ready, and returns its PID and the lines that
// it has written so far.
func child(t testing.TB, role string, args ...string) (pid int, said []string) {
	t.Helper()
	return childWith(t, nil, role, args...)
}

// childWith is [child] with attributes, such as namespaces.
func childWith(t testing.TB, attributes *syscall.SysProcAttr, role string, args ...string) (pid int, said []string) {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(own, append([]string{"role=" + role}, args...)...)
	cmd.Stderr, cmd.SysProcAttr = os.Stderr, attributes
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	for lines := bufio.NewScanner(out); lines.Scan(); said = append(said, lines.Text()) {
		if lines.Text() == "ready" {
			return cmd.Process.Pid, said
		}
	}
	t.Fatalf("%s %s has ended without being ready: %q", role, args, said)
	return 0, nil
}
