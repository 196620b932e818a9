// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/exchange"
)

// crowd is how many processes there are when it is asked who has devices open.
const crowd = 2000

// holders measures the question who has eight devices open: a process for each, as systemd starts it. The floor is to start
// an empty program and to read the same files of /proc once.
func (b *bench) holders() (results []result, err error) {
	socket := filepath.Join(b.dir, "holders.sock")
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	go startForEach(listener, filepath.Join(filepath.Dir(b.daemon), cgroup.Program))
	empty, err := buildEmpty(b.dir)
	if err != nil {
		return nil, err
	}
	end, err := gather(crowd)
	defer end()
	if err != nil {
		return nil, err
	}
	numbers := []cgroup.Number{{Major: 1, Minor: 7}} // /dev/full, which this process holds, and is left out
	full, err := os.Open("/dev/full")
	if err != nil {
		return nil, err
	}
	defer full.Close()
	for minor := range uint32(7) {
		numbers = append(numbers, cgroup.Number{Block: true, Major: 240, Minor: minor})
	}
	client := cgroup.Client{Peer: exchange.Peer{Program: cgroup.Program, Socket: socket}}
	var ours, theirs samples
	for range b.times(50) {
		begun := time.Now()
		answer, err := client.Holders(context.Background(), numbers)
		if err != nil && !errors.Is(err, cgroup.ErrIncomplete) { // on some machines root cannot read process 1
			return nil, err
		}
		ours = append(ours, time.Since(begun))
		for _, h := range answer.Holders {
			if h.PID == os.Getpid() {
				return nil, fmt.Errorf("%s names the process that asks", cgroup.Program)
			}
		}
		begun = time.Now()
		if err := exec.Command(empty).Run(); err != nil {
			return nil, fmt.Errorf("run the empty program: %w", err)
		}
		if err := readProcesses(); err != nil {
			return nil, err
		}
		theirs = append(theirs, time.Since(begun))
	}
	what := fmt.Sprintf("who has these 8 devices open, %d processes", crowd)
	return []result{
		ratio(what+", p50", "ms", ours.percentile(50), theirs.percentile(50), 2).over(ours),
		within(what+", p99", "ms", ours.percentile(99), 2000).of(len(ours)),
	}, nil
}

// gather starts so many processes that do nothing, and returns what ends them.
func gather(n int) (end func(), err error) {
	runtime.LockOSThread() // they end with the thread
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

// readProcesses reads what says of each process what it holds. One that ends in between has nothing to say.
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
