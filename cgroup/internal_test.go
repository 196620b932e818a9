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
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/need"
)

// Clock is the clock of all scans. In tests, it stands still unless TestMain or a test replaces it, so that the time limits of
// pods do not depend on the load of the machine.
var Clock = &clock

func init() { clock = func() time.Time { return time.Time{} } }

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
			r := &scanner{scan: newScan("/proc", nil, 0), owner: &owner{}}
			answers <- r.isHarmless(link{dir: task + "/fd", name: strconv.Itoa(fd), task: task})
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

// TestMemoryOfDescriptors reads the descriptors of a process after the kernel has once not answered about a file. The
// fdinfo of an epoll descriptor and of a file with locks have many lines. They must not cost memory.
func TestMemoryOfDescriptors(t *testing.T) {
	const lines = 3000
	locked, err := os.Create(filepath.Join(t.TempDir(), "locked"))
	poll, pollErr := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	event, eventErr := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err := errors.Join(err, pollErr, eventErr); err != nil {
		t.Fatal(err)
	}
	defer locked.Close()
	defer unix.Close(poll)
	defer unix.Close(event)
	another := event
	for i := range lines { // an epoll descriptor has one entry for each number that the other file had
		lock := &unix.Flock_t{Type: unix.F_WRLCK, Start: int64(2 * i), Len: 1}
		another, err = unix.FcntlInt(uintptr(event), unix.F_DUPFD_CLOEXEC, another+1)
		err = errors.Join(err, unix.FcntlFlock(locked.Fd(), unix.F_SETLK, lock))
		if err := errors.Join(err, unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, another, &unix.EpollEvent{}), unix.Close(another)); err != nil {
			t.Fatal(err)
		}
	}
	task := fmt.Sprintf("/proc/%d", os.Getpid())
	for _, fd := range []int{poll, int(locked.Fd())} {
		if text, err := os.ReadFile(fmt.Sprintf("%s/fdinfo/%d", task, fd)); err != nil || len(text) < 30*lines {
			t.Fatalf("fdinfo has %d bytes, %v", len(text), err)
		}
	}
	r := &scanner{scan: newScan("/proc", nil, 0), owner: &owner{}, careful: true}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = r.readDescriptors(task, make(map[Number]bool))
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; err != nil || used > 30*lines {
		t.Errorf("%d bytes are used, %v", used, err)
	}
}

// TestMountsOfAProcess checks that a table of mounts that is not read completely, or whose lines are cut, shows no file as harmless.
func TestMountsOfAProcess(t *testing.T) {
	const nodev, open = "%d 1 0:%[1]d / / rw,nodev - tmpfs x\n", "%d 1 0:9 / / rw - tmpfs x\n"
	long := strings.Repeat("x", 2*maxLine)
	var many strings.Builder
	for i := range maxMounts {
		fmt.Fprintf(&many, nodev, 9+i)
	}
	for _, c := range []struct {
		name, text       string
		byID9, byDevice9 bool
	}{
		{"one mount", fmt.Sprintf(nodev, 9), true, true},
		{"a long name at the end", "9 1 0:9 / / rw,nodev - tmpfs " + long + "\n", true, true},
		{"a long path", "9 1 0:9 /" + long + " / rw,nodev - tmpfs x\n", false, false},
		{"another mount", fmt.Sprintf(nodev+open, 9, 10), true, false},
		{"another mount with a long path", fmt.Sprintf(nodev, 9) + "10 1 0:9 / /" + long + " rw,nodev - tmpfs x\n", true, false},
		{"a malformed line", fmt.Sprintf(nodev, 9) + "x\n", false, false},
		{"as many as are stored", many.String(), true, true},
		{"too many", many.String() + fmt.Sprintf(open, 8), false, false},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/mountinfo", []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		m := (&scanner{scan: newScan("/proc", nil, 0), owner: &owner{}}).readMounts(dir)
		if m.byID[9] != c.byID9 || m.byDevice[device{0, 9}] != c.byDevice9 {
			t.Errorf("%s: %v, %v, want %v, %v", c.name, m.byID[9], m.byDevice[device{0, 9}], c.byID9, c.byDevice9)
		}
	}
	// The time limit of the pod applies.
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/mountinfo", []byte(fmt.Sprintf(nodev, 9)), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &scanner{scan: newScan("/proc", nil, 0), owner: &owner{pod: true}, end: time.Unix(0, 0)}
	r.now = time.Now
	if m := r.readMounts(dir); m.byID[9] {
		t.Error("the mounts are read after the time limit")
	}
}

// TestReadFile checks that a text that is too long is not returned as a complete one, and neither is a list.
func TestReadFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	for _, size := range []int{0, 1, maxRead - 1, maxRead, maxRead + 1} {
		if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		if text, err := readFile(name); (err == nil) != (size < maxRead) || err == nil && len(text) != size {
			t.Errorf("%d bytes: %d, %v", size, len(text), err)
		}
	}
	if pids, err := list("/proc", 1); !errors.Is(err, ErrIncomplete) {
		t.Errorf("more than one process: %v, %v", pids, err)
	}
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
		return r.eachText(maps, f)
	})
	if len(text) < 2 || !slices.Equal(numbers, text) {
		t.Errorf("by numbers:\n%s\nby text:\n%s", strings.Join(numbers, "\n"), strings.Join(text, "\n"))
	}
}
