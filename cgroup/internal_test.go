// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/need"
)

// TestHarmless checks that a file that cannot be inspected is judged by its kind.
func TestHarmless(t *testing.T) {
	if os.Geteuid() != 0 {
		need.Lacks(t, "root", "only root can become another user")
	}
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	node := filepath.Join(dir, "node")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 7))), os.WriteFile(dir+"/file", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	// The permissions prevent a thread of uid 65534 from inspecting it, as an SELinux policy would.
	questions, answers := make(chan int), make(chan bool)
	defer close(questions)
	go func() {
		runtime.LockOSThread() // the thread ends with this function
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			panic(errno)
		}
		task := fmt.Sprintf("/proc/%d", os.Getpid())
		for fd := range questions {
			r := &scanner{scan: newScan("/proc", nil, 0)}
			answers <- r.harmless(link{dir: task + "/fd", name: strconv.Itoa(fd), task: task})
		}
	}()
	check := func(name string, fd int, want bool) {
		t.Helper()
		questions <- fd
		if got := <-answers; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	for _, c := range []struct {
		path  string
		flags int
		want  bool
	}{
		{dir, unix.O_RDONLY, true},
		{dir + "/file", unix.O_RDONLY, true},
		{"/proc/self/status", unix.O_RDONLY, true},
		{node, unix.O_RDONLY, false},
		{"/dev/full", unix.O_RDONLY, false},
		{node, unix.O_PATH, true},
		{fifo, unix.O_RDWR, false},
	} {
		fd, err := unix.Open(c.path, c.flags|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		check(c.path, fd, c.want)
		unix.Close(fd)
		check("closed "+c.path, fd, true)
	}
	check("a socket", pair[0], true)
}

// TestMappingsBothWays checks that PROCMAP_QUERY and the text of maps give the same mapped files.
func TestMappingsBothWays(t *testing.T) {
	other := exec.Command("cat")
	stdin, inErr := other.StdinPipe()
	stdout, outErr := other.StdoutPipe()
	if err := errors.Join(inErr, outErr, other.Start()); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer stdin.Close()
	// After its first output, the program has loaded its libraries, and its mappings stay the same.
	_, inErr = stdin.Write([]byte("x"))
	_, outErr = stdout.Read(make([]byte, 1))
	if err := errors.Join(inErr, outErr); err != nil {
		t.Fatal(err)
	}
	task := fmt.Sprintf("/proc/%d", other.Process.Pid)
	r := &scanner{scan: newScan("/proc", nil, 0), owner: &owner{}}
	all := func(each func(f func(at addresses, of file) error) error) (found []string) {
		t.Helper()
		err := each(func(at addresses, of file) error {
			if of.inode != 0 {
				found = append(found, fmt.Sprintf("%s %+v", at, of))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	numbers := all(func(f func(at addresses, of file) error) error { return r.eachMapping(task, f) })
	text := all(func(f func(at addresses, of file) error) error {
		maps, err := openFile(task+"/maps", 0)
		if err != nil {
			return err
		}
		defer maps.Close()
		return r.eachLine(maps, f)
	})
	if len(text) < 2 || !slices.Equal(numbers, text) {
		t.Errorf("by numbers:\n%s\nby text:\n%s", strings.Join(numbers, "\n"), strings.Join(text, "\n"))
	}
}
