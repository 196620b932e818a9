// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
)

var (
	null = cgroup.Number{Major: 1, Minor: 3} // Documentation/admin-guide/devices.txt
	zero = cgroup.Number{Major: 1, Minor: 5}
	full = cgroup.Number{Major: 1, Minor: 7}
)

const (
	hostPIDs     = "pid:[4026531836]" // PROC_PID_INIT_INO of include/linux/proc_ns.h
	kernelThread = 0x00200000         // PF_KTHREAD of include/linux/sched.h
)

// tree is a directory that replaces /proc.
type tree struct {
	*testing.T
	dir string
}

func newTree(t *testing.T) tree {
	t.Helper()
	proc := tree{t, t.TempDir()}
	proc.link("self/ns/pid", hostPIDs)
	proc.process(1, "init", "S", 0, 1)
	return proc
}

func (t tree) write(name, text string) {
	t.Helper()
	file := filepath.Join(t.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func (t tree) link(name, target string) {
	t.Helper()
	file := filepath.Join(t.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.Symlink(target, file)); err != nil {
		t.Fatal(err)
	}
}

// process creates a process of the host that holds nothing.
func (t tree) process(pid int, comm, state string, flags, threads int) {
	t.Helper()
	t.write(fmt.Sprintf("%d/stat", pid), fmt.Sprintf("%d (%s) %s 1 1 1 0 -1 %d 0 0 0 0 0 0 0 0 20 0 %d 0 1 0 0\n",
		pid, comm, state, flags, threads))
	t.write(fmt.Sprintf("%d/cgroup", pid), "0::/system.slice/x.service\n")
	t.write(fmt.Sprintf("%d/maps", pid), "")
	if err := os.Mkdir(filepath.Join(t.dir, fmt.Sprint(pid), "fd"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// pipe replaces a file by a pipe. A scan that opens the pipe waits for a writer.
func (t tree) pipe(name string) (path string) {
	t.Helper()
	t.remove(name)
	path = filepath.Join(t.dir, name)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (t tree) remove(name string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(t.dir, name)); err != nil {
		t.Fatal(err)
	}
}

func TestHolders(t *testing.T) {
	const maps = `55f76cf36000-55f76cf38000 r--p 00000000 fe:00 247026                     /usr/bin/cat
55f76cf39000-55f76cf3a000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000001000 rw-s 00000000 00:05 8                          /dev/zero
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
`
	for _, c := range []struct {
		name string
		make func(proc tree)
		want []cgroup.Holder
	}{
		{"nobody", func(tree) {}, nil},
		{"by descriptors, named once", func(p tree) {
			p.process(42, "fio", "S", 0, 1)
			p.link("42/fd/0", "/dev/null")
			p.link("42/fd/1", "/dev/null")
			p.link("42/fd/2", "/dev/full")
			p.link("42/fd/3", "/dev/zero")
			p.link("42/fd/4", p.dir)
		}, []cgroup.Holder{{PID: 42, Comm: "fio", Number: null}, {PID: 42, Comm: "fio", Number: zero}}},
		{"in a container", func(p tree) {
			p.process(42, "fio", "S", 0, 1)
			p.link("42/fd/0", "/dev/null")
			p.write("42/cgroup", "0::/kubepods/pod"+uid+"/"+id1+"\n")
		}, []cgroup.Holder{{PID: 42, Comm: "fio", Number: null, PodUID: uid}}},
		{"by a mapping", func(p tree) {
			p.process(42, "dpdk", "S", 0, 1)
			p.write("42/maps", maps)
			p.link("42/map_files/55f76cf36000-55f76cf38000", p.dir)
			p.link("42/map_files/7f0000000000-7f0000001000", "/dev/zero")
		}, []cgroup.Holder{{PID: 42, Comm: "dpdk", Number: zero}}},
		{"a file mapped by two is asked about once", func(p tree) {
			p.process(42, "a", "S", 0, 1)
			p.process(43, "b", "S", 0, 1)
			for _, pid := range []string{"42", "43"} {
				p.write(pid+"/maps", "00001000-00002000 rw-s 00000000 00:05 8   /dev/zero\n")
			}
			p.link("42/map_files/1000-2000", "/dev/zero")
			p.link("43/map_files/1000-2000", "/dev/zero")
		}, []cgroup.Holder{{PID: 42, Comm: "a", Number: zero}, {PID: 43, Comm: "b", Number: zero}}},
		{"a mapped file that cannot be inspected, on a mount where no node can be opened", func(p tree) {
			p.write("1/maps", "1000-2000 rw-s 0 00:09 8 /run/x\n")
			p.link("1/map_files/1000-2000", p.dir+"/1/map_files/1000-2000")
			p.write("1/mountinfo", "7 1 0:9 / /run rw,nosuid,nodev - tmpfs tmpfs rw\n")
		}, nil},
		{"a file that is always mapped elsewhere, from such a mount", func(p tree) {
			p.write("1/maps", "1000-2000 rw-s 0 00:09 8 /run/x\n")
			p.write("1/mountinfo", "7 1 0:9 / /run rw,nosuid,nodev - tmpfs tmpfs rw\n")
		}, nil},
		{"a process of an odd name", func(p tree) {
			p.process(42, ") S 1 (\n", "S", 0, 1)
			p.link("42/fd/0", "/dev/null")
		}, []cgroup.Holder{{PID: 42, Comm: ") S 1 (\n", Number: null}}},
		{"a closed descriptor", func(p tree) { p.link("1/fd/0", "/nonexistent") }, nil},
		{"a process that is gone before it is looked at", func(p tree) { p.write("42/x", "") }, nil},
		{"one that is gone before its cgroup is read", func(p tree) {
			p.link("1/fd/0", "/dev/null")
			p.remove("1/cgroup")
		}, nil},
		{"one that is gone before its threads are listed", func(p tree) { p.process(42, "x", "S", 0, 2) }, nil},
		{"one that is gone before its mappings are read", func(p tree) { p.remove("1/maps") }, nil},
		{"a zombie", func(p tree) {
			p.process(42, "x", "Z", 0, 1)
			p.link("42/fd/0", "/dev/null")
		}, nil},
		{"a thread of the kernel", func(p tree) {
			p.process(42, "kworker/0:1-events", "I", kernelThread, 1)
			p.link("42/fd/0", "/dev/null")
		}, nil},
		{"a thread with descriptors of its own, the first one has ended", func(p tree) {
			p.process(1<<22+1, "x", "Z", 0, 2) // kcmp(2) fails for both numbers, which exceed PID_MAX_LIMIT
			p.process(1<<22+2, "x", "S", 0, 2)
			p.link("4194305/task/4194305", "../..")
			p.link("4194305/task/4194306", "../..")
			p.link("4194306/task/4194305", "../..")
			p.link("4194306/task/4194306", "../..")
			p.link("4194306/fd/0", "/dev/null")
		}, []cgroup.Holder{{PID: 1<<22 + 1, Comm: "x", Number: null}, {PID: 1<<22 + 2, Comm: "x", Number: null}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			proc := newTree(t)
			c.make(proc)
			got, err := cgroup.Holders(proc.dir, []cgroup.Number{null, zero}, 0)
			if err != nil || !slices.Equal(got.Holders, c.want) || got.Unread != nil {
				t.Errorf("Holders = %+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
}

// TestHoldersOfUnreadable checks that unreadable processes make the answer incomplete.
func TestHoldersOfUnreadable(t *testing.T) {
	for _, c := range []struct {
		name  string
		make  func(proc tree)
		named int
		cause string
	}{
		{"descriptors", func(p tree) {
			p.remove("1/fd")
			p.write("1/fd", "") // ENOTDIR simulates a missing permission, since root has all permissions
		}, 0, `process 1 ("init"): open `},
		{"one descriptor", func(p tree) { p.link("1/fd/0", p.dir+"/1/fd/0") }, 0, "too many levels of symbolic links"},
		{"one of two descriptors", func(p tree) {
			p.link("1/fd/0", "/dev/null")
			p.link("1/fd/1", p.dir+"/1/fd/1")
		}, 1, "too many levels of symbolic links"},
		{"the mappings", func(p tree) {
			p.remove("1/maps")
			p.write("1/maps/x", "")
		}, 0, "is a directory"},
		{"a mapping", func(p tree) {
			p.write("1/maps", "1000-2000 rw-s 0 00:05 8 /dev/null\n")
			p.link("1/map_files/1000-2000", p.dir+"/1/map_files/1000-2000")
		}, 0, "too many levels of symbolic links"},
		{"a file that is always mapped elsewhere", func(p tree) {
			p.write("1/maps", "1000-2000 rw-s 0 00:05 8 /dev/null\n")
		}, 0, "the mappings keep changing"},
		{"the cgroup of a holder", func(p tree) {
			p.remove("1/cgroup")
			p.write("1/cgroup/x", "")
			p.link("1/fd/0", "/dev/null")
		}, 1, "is a directory"},
		{"the threads", func(p tree) {
			p.process(42, "x", "S", 0, 2)
			p.write("42/task", "")
		}, 0, `process 42 ("x"): `},
		{"the status", func(p tree) {
			p.remove("1/stat")
			p.write("1/stat/x", "")
		}, 0, `process 1 (""): `},
		{"what the status means", func(p tree) { p.write("1/stat", "1 init S") }, 0, `"1 init S"`},
		{"a status cut short", func(p tree) { p.write("1/stat", "1 (init) S 1 1\n") }, 0, `"1 (init) S 1 1\n"`},
		{"a status without numbers", func(p tree) { p.write("1/stat", "1 (init)"+strings.Repeat(" x", 20)) }, 0, `"x"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			proc := newTree(t)
			c.make(proc)
			got, err := cgroup.Holders(proc.dir, []cgroup.Number{null}, 0)
			if !errors.Is(err, cgroup.ErrIncomplete) || len(got.Unread) != 1 || len(got.Holders) != c.named ||
				got.Unread[0].Count != 1 || !got.Unread[0].Any || !strings.Contains(got.Unread[0].Cause, c.cause) {
				t.Errorf("Holders = %+v, %v\nwant one unread because of %q", got, err, c.cause)
			}
		})
	}
}

func TestHoldersWithHiddenProcesses(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(proc tree)
		want error
	}{
		{"by hidepid", func(p tree) { p.remove("1") }, cgroup.ErrIncomplete},
		{"by a PID namespace", func(p tree) {
			p.remove("self/ns/pid")
			p.link("self/ns/pid", "pid:[4026532201]")
		}, cgroup.ErrIncomplete},
		{"no procfs", func(p tree) { p.remove(".") }, unix.ENOENT},
		{"nothing but self", func(p tree) {
			p.remove("self")
			p.link("self", "/proc/self")
			p.remove("1")
		}, cgroup.ErrIncomplete},
	} {
		t.Run(c.name, func(t *testing.T) {
			proc := newTree(t)
			c.make(proc)
			if got, err := cgroup.Holders(proc.dir, []cgroup.Number{null}, 0); !errors.Is(err, c.want) || got.Holders != nil {
				t.Errorf("Holders = %+v, %v, want %v", got, err, c.want)
			}
		})
	}
}

// TestForkChain starts a process that inherits descriptors, and ends its parent, while /proc is read.
func TestForkChain(t *testing.T) {
	const none, endless = 0, 1 << 20
	heir := []cgroup.Holder{{PID: 103, Comm: "x", Number: null, PodUID: "a"}}
	for _, c := range []struct {
		name, cgroup string
		links        int    // processes that end before they are read
		state        string // state in the stat file of an ended process, or "" if its directory is gone
		want         []cgroup.Holder
		unread       bool // whether pod a counts as unread
	}{
		{"that ends", "0::/kubepods/poda/" + id1, 3, "", heir, false},
		{"that does not end", "0::/kubepods/poda/" + id1, endless, "", nil, true},
		{"of zombies", "0::/kubepods/poda/" + id1, endless, "Z", nil, true},
		{"that ends after zombies", "0::/kubepods/poda/" + id1, 3, "Z", heir, false},
		{"of the host", "0::/system.slice/x.service", endless, "", nil, false},
		{"of one process", "0::/kubepods/poda/" + id1, none, "", []cgroup.Holder{{PID: 100, Comm: "x", Number: null, PodUID: "a"}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			proc := newTree(t)
			chain := forkChain{dir: proc.dir, cgroup: c.cgroup, links: c.links, state: c.state}
			if err := chain.fork(); err != nil {
				t.Fatal(err)
			}
			done, ended := make(chan struct{}), make(chan error, 1)
			go func() { ended <- chain.run(done) }()
			got, err := cgroup.Holders(proc.dir, []cgroup.Number{null}, 0)
			close(done)
			if err := chain.end(ended); err != nil {
				t.Fatal(err)
			}
			if err != nil || !slices.Equal(got.Holders, c.want) {
				t.Errorf("Holders = %+v, %v\nwant %+v", got, err, c.want)
			}
			if got.Err("b") != nil || (got.Err("a") != nil) != c.unread {
				t.Errorf("unread: %+v", got.Unread)
			}
		})
	}
}

// forkChain creates processes from PID 100 on, each with a node open. The cgroup file of each process is a pipe. If the
// process becomes a zombie, its stat file is the pipe instead. While this pipe is read, the process starts the next one
// and ends. The last process of the chain continues to run.
type forkChain struct {
	dir, cgroup, state string
	links, n           int
}

// stat returns the stat file of the last process, with the given state.
func (c *forkChain) stat(state string) string {
	return fmt.Sprintf("%d (x) %s 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0\n", 100+c.n, state)
}

// pipe returns the name of the file that is a pipe.
func (c *forkChain) pipe() string {
	if c.state != "" {
		return "stat"
	}
	return "cgroup"
}

// fork creates the next process.
func (c *forkChain) fork() error {
	dir := filepath.Join(c.dir, "new")
	err := errors.Join(os.MkdirAll(dir+"/fd", 0o755), os.Symlink("/dev/null", dir+"/fd/0"), os.WriteFile(dir+"/maps", nil, 0o644))
	for name, text := range map[string]string{"stat": c.stat("S"), "cgroup": c.cgroup} {
		if c.n < c.links && name == c.pipe() {
			err = errors.Join(err, unix.Mkfifo(dir+"/"+name, 0o600))
		} else {
			err = errors.Join(err, os.WriteFile(dir+"/"+name, []byte(text), 0o644))
		}
	}
	return errors.Join(err, os.Rename(dir, c.last()))
}

// last returns the directory of the last process.
func (c *forkChain) last() string { return filepath.Join(c.dir, strconv.Itoa(100+c.n)) }

func (c *forkChain) run(done chan struct{}) error {
	for c.n < c.links {
		parent := c.last()
		reader, err := os.OpenFile(parent+"/"+c.pipe(), os.O_WRONLY, 0) // waits for a reader
		if err != nil {
			return err
		}
		defer reader.Close()
		select {
		case <-done:
			return nil
		default:
		}
		text, bury := c.cgroup, os.RemoveAll
		if c.state != "" {
			text, bury = c.stat(c.state), func(string) error { return nil }
		}
		c.n++
		forkErr := c.fork()
		_, writeErr := reader.WriteString(text)
		if err := errors.Join(forkErr, bury(parent), writeErr, reader.Close()); err != nil {
			return err
		}
	}
	return nil
}

// end makes run return, which waits for a reader of the last process.
func (c *forkChain) end(ended chan error) error {
	for {
		select {
		case err := <-ended:
			return err
		default:
		}
		pipes, err := filepath.Glob(filepath.Join(c.dir, "[0-9]*", c.pipe()))
		if err != nil {
			return err
		}
		for _, pipe := range pipes {
			if reader, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
				reader.Close()
			}
		}
		runtime.Gosched()
	}
}

// TestUnreadProcessCounts checks that an unread process of a pod counts for the devices of that pod, and one of
// the host for all devices.
func TestUnreadProcessCounts(t *testing.T) {
	const pods, privileged, host = 0, 1, 2
	all := []cgroup.Unread{{PodUID: "a", Count: 3, Cause: "of a"}, {PodUID: "p", Any: true, Count: 1, Cause: "of p"}, {Any: true, Count: 1, Cause: "of the host"}}
	for _, c := range []struct {
		unread []cgroup.Unread
		pods   []string
		want   string
	}{
		{nil, []string{"a"}, ""},
		{all[:privileged], nil, ""},
		{all[:privileged], []string{"b", ""}, ""},
		{all[:privileged], []string{"b", "a"}, "3 of them: of a"},
		{all[privileged:host], nil, "1 of them: of p"},
		{all[host:], []string{"b"}, "1 of them: of the host"},
		{all[pods:], nil, "2 of them: of p"},
	} {
		err := cgroup.Answer{Unread: c.unread}.Err(c.pods...)
		if (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, cgroup.ErrIncomplete) || !strings.HasSuffix(err.Error(), c.want)) {
			t.Errorf("%+v, pods %q: %v, want %q", c.unread, c.pods, err, c.want)
		}
	}
}
