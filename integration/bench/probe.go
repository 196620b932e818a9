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
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/reset"
)

// diskSize is the size of the probed disks in bytes. The disks that are read in full have largeSize in memory, and storedSize
// in a file system.
const diskSize, largeSize, storedSize = 1 << 30, 4 << 30, 512 << 20

// probe measures the time until the helper has reported the content of a disk, with a new process for each request, as
// systemd starts it. The disk is a loop device in memory, so the result excludes the time of a real drive. The budget
// is the second in which a known disk must be offered.
func (b *bench) probe() (results []result, err error) {
	var disks []*loopDisk
	defer func() {
		for _, d := range disks {
			err = errors.Join(err, d.close())
		}
	}()
	disk, err := newLoop(filepath.Join(b.dir, "disk"), diskSize)
	if err != nil {
		return nil, err
	}
	disks = append(disks, disk)
	helpers, end, err := b.helpers()
	if err != nil {
		return nil, err
	}
	defer end()
	empty, err := buildEmpty(b.dir)
	if err != nil {
		return nil, err
	}
	ours, theirs, err := alternate(b.countSamples(200), func() error { return disk.probe(helpers.reset) }, func() error {
		if err := exec.Command(empty).Run(); err != nil {
			return fmt.Errorf("run the empty program: %w", err)
		}
		return disk.readAsMuch()
	})
	if err != nil {
		return nil, err
	}
	results = milliseconds("a disk is read before it is offered", ours, theirs, map[int]float64{50: 1000, 99: 1000})
	note := "with the start of the process, and its questions before and after who uses the disk"
	if _, err := helpers.holders.Holders(context.Background(), func() []cgroup.Number { return nil }); errors.Is(err, cgroup.ErrIncomplete) {
		note = "with the start of the process; without the questions who uses the disk, as root cannot read each process here"
		unasked, end, err := b.helpersWithout()
		if err != nil {
			return results, err
		}
		defer end()
		helpers = unasked
	}
	large, err := newLoop(filepath.Join(b.dir, "large"), largeSize)
	if err != nil {
		return results, err
	}
	disks = append(disks, large)
	memory, err := b.survey(helpers.reset, large, "memory", largeSize)
	if err != nil {
		return results, err
	}
	dir, err := os.MkdirTemp("/var/tmp", "mp")
	if err != nil {
		return results, err
	}
	defer os.RemoveAll(dir)
	stored, err := newStoredLoop(filepath.Join(dir, "stored"), storedSize)
	if err != nil {
		return results, err
	}
	disks = append(disks, stored)
	file, err := b.survey(helpers.reset, stored, "a file", storedSize)
	if err != nil {
		return results, err
	}
	return append(results, memory.withNote("%s", note), file.withNote("%s", note)), nil
}

// alternate measures the daemon's work and its floor alternately.
func alternate(times int, our, floor func() error) (ours, theirs samples, err error) {
	for range times {
		for _, one := range []struct {
			do   func() error
			into *samples
		}{{our, &ours}, {floor, &theirs}} {
			begun := time.Now()
			if err := one.do(); err != nil {
				return nil, nil, err
			}
			*one.into = append(*one.into, time.Since(begun))
		}
	}
	return ours, theirs, nil
}

// helpers are clients of programs that are started for each request, as by systemd.
type helpers struct {
	reset   reset.Client
	holders cgroup.Client
}

// helpers starts the programs for each request until end is called. metalplug-reset starts metalplug-holders as its
// child.
func (b *bench) helpers() (h helpers, end func(), err error) {
	return b.helpersIn(filepath.Dir(b.daemon))
}

// helpersWithout returns helpers whose metalplug-holders reports no process.
func (b *bench) helpersWithout() (h helpers, end func(), err error) {
	dir, err := b.subdir("x")
	if err != nil {
		return h, nil, err
	}
	program, err := os.ReadFile(filepath.Join(filepath.Dir(b.daemon), reset.Program))
	if err != nil {
		return h, nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, reset.Program), program, 0o700); err != nil {
		return h, nil, err
	}
	source := filepath.Join(dir, "none.go")
	text := "package main\n\nimport \"syscall\"\n\nfunc main() {\n\tsyscall.Read(0, make([]byte, 1<<16))\n\tsyscall.Write(0, []byte(\"{}\"))\n}\n"
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		return h, nil, err
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, cgroup.Program), source).CombinedOutput(); err != nil {
		return h, nil, fmt.Errorf("build a program that answers: %w: %s", err, lastLines(string(out)))
	}
	return b.helpersIn(dir)
}

// helpersIn returns helpers with the programs in a directory.
func (b *bench) helpersIn(programs string) (h helpers, end func(), err error) {
	dir, err := b.subdir("h")
	if err != nil {
		return h, nil, err
	}
	config := filepath.Join(dir, "metalplug.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "[reset]\nholders = %q\n", exchange.Direct), 0o600); err != nil {
		return h, nil, err
	}
	// The unit of metalplug-reset provides a directory for locks, so that not every request must read the
	// configuration.
	env := []string{"METALPLUG_CONFIG=" + config, "RUNTIME_DIRECTORY=" + filepath.Join(dir, "locks")}
	var all []*net.UnixListener
	end = func() {
		for _, l := range all {
			l.Close()
		}
	}
	for _, p := range []struct {
		program string
		peer    *exchange.Peer
	}{{reset.Program, &h.reset.Peer}, {cgroup.Program, &h.holders.Peer}} {
		socket := filepath.Join(dir, p.program)
		listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
		if err != nil {
			end()
			return h, nil, err
		}
		all = append(all, listener)
		nice, err := niceOf(p.program)
		if err != nil {
			end()
			return h, nil, err
		}
		go startForEach(listener, filepath.Join(programs, p.program), env, nice)
		*p.peer = exchange.Peer{Program: p.program, Socket: socket}
	}
	return h, end, nil
}

// survey measures the speed of reading a whole disk, compared with dd.
func (b *bench) survey(client reset.Client, disk *loopDisk, medium string, size int64) (result, error) {
	ours, theirs, err := alternate(b.countSamples(20), func() error {
		return disk.ask(client, reset.Request{Do: reset.Survey}, func(a reset.Answer) error {
			if a.Read != size || a.Content != "" {
				return fmt.Errorf("a survey of a blank disk has read %d of %d bytes and found %q", a.Read, a.Size, a.Content)
			}
			return nil
		})
	}, func() error {
		if out, err := exec.Command("dd", "if="+disk.node, "of=/dev/null", "bs=4M", "iflag=direct").CombinedOutput(); err != nil {
			return fmt.Errorf("dd: %w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		return result{}, err
	}
	rate := func(ms float64) float64 { return float64(size>>20) / ms * 1000 }
	r := result{Name: fmt.Sprintf("a disk in %s is surveyed, p50", medium), Value: rate(ours.percentile(50)), Unit: "MiB/s", Budget: "0.8 x dd"}.
		above(rate(theirs.percentile(50))).beside(rate(ours.percentile(99))).of(len(ours))
	r.OK = *r.Ratio >= 0.8
	return r, nil
}

// niceOf returns the scheduling priority that a program has in its unit, or 0 (systemd.exec(5), Nice=).
func niceOf(program string) (int, error) {
	unit, err := os.ReadFile(filepath.Join("systemd", program+"@.service"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(unit)) {
		if value, ok := strings.CutPrefix(line, "Nice="); ok {
			return strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return 0, nil
}

// startForEach starts the program for each connection, like systemd for a socket with Accept=yes.
func startForEach(listener *net.UnixListener, program string, env []string, nice int) {
	runtime.LockOSThread() // a child has the priority of the thread that starts it
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, nice); err != nil {
		fmt.Fprintf(os.Stderr, "set the priority of %s: %v\n", program, err)
	}
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		if stdin, err := conn.File(); err == nil {
			child := exec.Command(program)
			child.Stdin, child.Stderr, child.Env = stdin, os.Stderr, append(os.Environ(), env...)
			if child.Start() == nil {
				go child.Wait() // the answer of the program contains any error
			}
			stdin.Close()
		}
		conn.Close()
	}
}

// loopDisk is a loop device over a file. The benchmark does not keep it open, because an open disk would count as in use.
type loopDisk struct {
	node, sysPath, seq string
}

// newLoop creates a disk from a new file with zeroes.
func newLoop(file string, size int64) (*loopDisk, error) {
	backing, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	if err := backing.Truncate(size); err != nil {
		return nil, err
	}
	return loopOver(backing, 0)
}

// newStoredLoop creates a disk from a new file with zeroes that are stored in its file system. Reads of the disk bypass the
// page cache of the file.
func newStoredLoop(file string, size int64) (*loopDisk, error) {
	backing, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	zeroes := make([]byte, 1<<20)
	for at := int64(0); at < size; at += int64(len(zeroes)) {
		if _, err := backing.WriteAt(zeroes, at); err != nil {
			return nil, err
		}
	}
	if err := backing.Sync(); err != nil {
		return nil, err
	}
	return loopOver(backing, unix.LO_FLAGS_DIRECT_IO)
}

// loopOver creates a loop device from a file, with flags from include/uapi/linux/loop.h.
func loopOver(backing *os.File, flags uint32) (*loopDisk, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, fmt.Errorf("get a free loop device: %w", err)
	}
	name := fmt.Sprintf("loop%d", number)
	d := &loopDisk{node: "/dev/" + name, sysPath: "/sys/devices/virtual/block/" + name}
	err = d.withOpenDisk(func(f *os.File) error {
		return unix.IoctlLoopConfigure(int(f.Fd()), &unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: flags}})
	})
	if err != nil {
		return nil, fmt.Errorf("make %s of %s: %w", name, backing.Name(), err)
	}
	seq, err := os.ReadFile(d.sysPath + "/diskseq")
	d.seq = strings.TrimSpace(string(seq))
	return d, err
}

// withOpenDisk calls f with the disk open.
func (d *loopDisk) withOpenDisk(f func(*os.File) error) error {
	file, err := os.OpenFile(d.node, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	return f(file)
}

// close removes the disk.
func (d *loopDisk) close() error {
	return d.withOpenDisk(func(f *os.File) error { return unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0) })
}

// forget drops the disk's cached pages, as the kernel does when no process has it open any more. BLKFLSBUF is in
// include/uapi/linux/fs.h.
func (d *loopDisk) forget() error {
	const blkFlsBuf = 0x1261
	return d.withOpenDisk(func(f *os.File) error { return unix.IoctlSetInt(int(f.Fd()), blkFlsBuf, 0) })
}

func (d *loopDisk) probe(client reset.Client) error {
	if err := d.forget(); err != nil {
		return err
	}
	return d.ask(client, reset.Request{Do: reset.Probe}, func(a reset.Answer) error {
		if a.Content != "" {
			return fmt.Errorf("%s is on a disk of zeroes", a.Content)
		}
		return nil
	})
}

// ask makes a request about the disk.
func (d *loopDisk) ask(client reset.Client, r reset.Request, check func(reset.Answer) error) error {
	r.SysPath, r.Class, r.TimeoutMS = d.sysPath, "node", time.Minute.Milliseconds()
	r.Identity = map[string]string{"diskseq": d.seq}
	a, err := client.Do(context.Background(), r)
	if err == nil {
		err = a.Err()
	}
	if err == nil && check != nil {
		err = check(a)
	}
	return err
}

// readAsMuch reads the first and last 16 MiB and 4,096 blocks in between, like the helper.
func (d *loopDisk) readAsMuch() error {
	if err := d.forget(); err != nil {
		return err
	}
	return d.withOpenDisk(func(f *os.File) error {
		const edge, block, blocks = 16 << 20, 4096, 4096
		b := make([]byte, edge)
		for n := range int64(blocks) {
			if _, err := f.ReadAt(b[:block], edge+n*(diskSize-2*edge)/blocks); err != nil {
				return err
			}
		}
		for _, offset := range [...]int64{0, diskSize - edge} {
			if _, err := f.ReadAt(b, offset); err != nil {
				return err
			}
		}
		return nil
	})
}
