// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
)

// crowd is the number of processes during a search for open devices.
const crowd = 2000

// measureHolders measures the search for the processes that have eight devices open, with a new helper process for each
// request, as systemd starts it. The floor starts an empty program and reads the same files of /proc once.
func (b *bench) measureHolders() ([]result, error) {
	end, err := gather(crowd)
	defer end()
	if err != nil {
		return nil, err
	}
	return b.question(fmt.Sprintf("who has these 8 devices open, %d processes", crowd), b.countSamples(50), nil)
}

// attack measures the search while unprivileged processes make it expensive. It runs attackers of the test of package cgroup at
// the same time, each in the cgroup of a separate pod.
func (b *bench) attack() (results []result, err error) {
	end, err := gather(crowd)
	defer end()
	if err != nil {
		return nil, err
	}
	pods, err := newPods()
	defer pods.remove()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(b.dir, "attack")
	if out, err := exec.Command("go", "test", "-c", "-o", program, "./cgroup").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the attackers: %w: %s", err, lastLines(string(out)))
	}
	names, err := b.subdir("names")
	if err != nil {
		return nil, err
	}
	apart := &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: 65534, Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: 65534, Size: 1}},
	}
	holding := make(map[int]string) // UIDs of pods by the process that holds the devices
	for n, a := range []struct {
		attributes *syscall.SysProcAttr
		holds      bool
		args       []string
	}{
		{nil, false, []string{"churn", "memory"}},
		{nil, false, []string{"churn", "/dev/shm"}},
		{nil, false, []string{"names", names}},
		{nil, true, []string{"threads", "8000", held}},
		{nil, false, []string{"forks"}},
		{nil, false, []string{"execs", held}},
		{nil, false, []string{"moving", "/var/tmp"}},
		{nil, false, []string{"groups"}},
		{nil, true, []string{"vfork", held}},
		{nil, true, []string{"undumpable", held}},
		{apart, true, []string{"open", held}},
	} {
		uid, pid, stop := fmt.Sprintf("00000000-0000-4000-8000-%012d", n), 0, func() {}
		err := pods.inside(uid, func() (err error) {
			pid, stop, err = attacker(program, a.attributes, a.args)
			return err
		})
		defer stop()
		if err != nil {
			return nil, err
		}
		if a.holds {
			holding[pid] = uid
		}
	}
	return b.question(fmt.Sprintf("the same under attack, %d processes", crowd), b.countSamples(5), holding)
}

// held is a device node that the attackers have open.
const held = "/dev/full"

// attacker starts a process in a role of the test of package cgroup, and waits until it is ready. stop ends the
// process.
func attacker(program string, attributes *syscall.SysProcAttr, args []string) (pid int, stop func(), err error) {
	stop = func() {}
	c := exec.Command(program, append([]string{"role=" + args[0]}, args[1:]...)...)
	if c.SysProcAttr = attributes; attributes == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Pdeathsig, c.Stderr = unix.SIGKILL, os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		return 0, stop, err
	}
	if err := c.Start(); err != nil {
		return 0, stop, fmt.Errorf("start the attacker %q: %w", args, err)
	}
	stop = func() {
		c.Process.Kill()
		c.Wait()
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "ready" {
			return c.Process.Pid, stop, nil
		}
	}
	return 0, stop, fmt.Errorf("start the attacker %q: it has ended", args)
}

// pods creates the cgroups of pods. The kubelet does not know these pods, because their parent cgroup is not its own.
type pods struct{ root, home, dir string } // the hierarchy, the cgroup of this process, and a new cgroup

// newPods uses the hierarchy of version 2 if systemd uses it, and otherwise the hierarchy "pids" of version 1.
func newPods() (p pods, err error) {
	p.root = "/sys/fs/cgroup"
	controllers := ""
	if _, err := os.Stat(p.root + "/cgroup.controllers"); err != nil {
		p.root, controllers = p.root+"/pids", "pids"
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(string(own)) {
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 && fields[1] == controllers {
			p.home = filepath.Join(p.root, fields[2])
		}
	}
	if p.dir, err = os.MkdirTemp(p.root, "metalplug-bench-*"); err != nil {
		return p, fmt.Errorf("create a cgroup for the attackers: %w", err)
	}
	return p, nil
}

// inside runs a function while this process is in the cgroup of a pod. The processes that the function starts stay there.
func (p pods) inside(uid string, start func() error) error {
	dir := filepath.Join(p.dir, "kubepods", "pod"+uid)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	move := func(to string) error {
		return os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	}
	return errors.Join(move(dir), start(), move(p.home))
}

// remove removes the cgroups as soon as they contain no process, but gives up after a few seconds.
func (p pods) remove() {
	pods, _ := filepath.Glob(p.dir + "/kubepods/*")
	for _, dir := range append(pods, p.dir+"/kubepods", p.dir) {
		for end := time.Now().Add(5 * time.Second); errors.Is(unix.Rmdir(dir), unix.EBUSY) && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// question sends the request several times, and checks that the answer does not have this process. For each given process, the
// answer must have the process, or say that the processes of its pod could not be read.
func (b *bench) question(what string, times int, holding map[int]string) ([]result, error) {
	h, end, err := b.helpers()
	if err != nil {
		return nil, err
	}
	defer end()
	empty, err := buildEmpty(b.dir)
	if err != nil {
		return nil, err
	}
	full, err := os.Open(held) // the answer must omit this process, which has the node open
	if err != nil {
		return nil, err
	}
	defer full.Close()
	numbers := []cgroup.Number{{Major: 1, Minor: 7}} // device number of held
	for minor := range uint32(7) {
		numbers = append(numbers, cgroup.Number{Block: true, Major: 240, Minor: minor})
	}
	ours, theirs, err := alternate(times, func() error {
		answer, err := h.holders.Holders(context.Background(), func() []cgroup.Number { return numbers })
		if err != nil && !errors.Is(err, cgroup.ErrIncomplete) { // on some machines root cannot read process 1
			return err
		}
		return checkNames(answer, holding)
	}, func() error {
		if err := exec.Command(empty).Run(); err != nil {
			return fmt.Errorf("run the empty program: %w", err)
		}
		return readProcesses()
	})
	if err != nil {
		return nil, err
	}
	return []result{
		ratio(what+", p50", "ms", ours.percentile(50), theirs.percentile(50), 2).withPercentile(ours),
		within(what+", p99", "ms", ours.percentile(99), 2000).above(theirs.percentile(99)).of(len(ours)),
	}, nil
}

// checkNames checks an answer, see [bench.question].
func checkNames(a cgroup.Answer, holding map[int]string) error {
	names := func(pid int) bool {
		return slices.ContainsFunc(a.Holders, func(h cgroup.Holder) bool { return h.PID == pid })
	}
	if names(os.Getpid()) {
		return fmt.Errorf("%s names the process that asks", cgroup.Program)
	}
	for pid, uid := range holding {
		if !names(pid) && !slices.ContainsFunc(a.Unread, func(u cgroup.Unread) bool { return u.PodUID == uid }) {
			return fmt.Errorf("%s does not name process %d of pod %s: %+v", cgroup.Program, pid, uid, a)
		}
	}
	return nil
}

// gather starts n idle processes, and returns a function that ends them.
func gather(n int) (end func(), err error) {
	runtime.LockOSThread() // the kernel releases them when the thread ends
	var all []*exec.Cmd
	end = func() {
		for _, p := range all {
			p.Process.Kill()
			p.Wait()
		}
		runtime.UnlockOSThread()
	}
	for range n {
		p := exec.Command("sleep", "infinity")
		p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err := p.Start(); err != nil {
			return end, fmt.Errorf("start %d processes: %w", n, err)
		}
		all = append(all, p)
	}
	return end, nil
}

// readProcesses reads the files that show which devices each process has open. It skips a process that ends in the
// meantime.
func readProcesses() error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		for _, name := range []string{"stat", "cgroup", "maps"} {
			os.ReadFile(filepath.Join(dir, name))
		}
		fds, _ := os.ReadDir(filepath.Join(dir, "fd"))
		for _, fd := range fds {
			var st unix.Stat_t
			unix.Stat(filepath.Join(dir, "fd", fd.Name()), &st)
		}
	}
	return nil
}
