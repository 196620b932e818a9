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
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/reset"
)

// diskSize is that of the disk that is probed, in bytes.
const diskSize = 1 << 30

// probe measures how long it takes until the helper has said what is on a disk: a process for each, as systemd starts it.
// The disk is a loop device over memory, so that this is what we take, without the drive's own time. The budget is that
// of a start: a disk must not take longer to come than the whole daemon.
func (b *bench) probe() (results []result, err error) {
	disk, err := newLoop(filepath.Join(b.dir, "disk"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	socket := filepath.Join(b.dir, "reset.sock")
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	go startForEach(listener, filepath.Join(filepath.Dir(b.daemon), reset.Program))
	empty, err := buildEmpty(b.dir)
	if err != nil {
		return nil, err
	}
	client := reset.Client{Peer: exchange.Peer{Program: reset.Program, Socket: socket}}
	var ours, theirs samples
	for range b.times(200) {
		begun := time.Now()
		if err := disk.probe(client); err != nil {
			return nil, err
		}
		ours = append(ours, time.Since(begun))
		begun = time.Now()
		if err := exec.Command(empty).Run(); err != nil {
			return nil, fmt.Errorf("run the empty program: %w", err)
		}
		if err := disk.readAsMuch(); err != nil {
			return nil, err
		}
		theirs = append(theirs, time.Since(begun))
	}
	what := "a disk is read before it is offered"
	results = milliseconds(what, ours, theirs, map[int]float64{50: 50, 99: 100})
	starts, err := b.proven(disk, client, empty)
	if err != nil {
		return nil, err
	}
	survey, err := disk.survey(client)
	return append(append(results, starts...), survey), err
}

// proven measures how long it takes to prove eight disks free before a pod starts, a process for each, beside the start of as
// many empty processes.
func (b *bench) proven(disk *loopDisk, client reset.Client, empty string) ([]result, error) {
	const devices = 8
	atOnce := func(do func() error) (time.Duration, error) {
		begun := time.Now()
		errs := make(chan error)
		for range devices {
			go func() { errs <- do() }()
		}
		var all error
		for range devices {
			all = errors.Join(all, <-errs)
		}
		return time.Since(begun), all
	}
	var ours, theirs samples
	for range b.times(50) {
		took, err := atOnce(func() error { return disk.ask(client, reset.Request{Do: reset.Look}, nil) })
		if err != nil {
			return nil, err
		}
		ours = append(ours, took)
		if took, err = atOnce(func() error { return exec.Command(empty).Run() }); err != nil {
			return nil, fmt.Errorf("run the empty program: %w", err)
		}
		theirs = append(theirs, took)
	}
	return milliseconds("eight helpers, one for each disk of a start", ours, theirs, map[int]float64{50: 100, 99: 200}), nil
}

// survey measures how fast a whole disk is read, beside dd.
func (d *loopDisk) survey(client reset.Client) (result, error) {
	if err := d.forget(); err != nil {
		return result{}, err
	}
	begun := time.Now()
	err := d.ask(client, reset.Request{Do: reset.Survey}, func(a reset.Answer) error {
		if a.Read != diskSize || a.Content != "" {
			return fmt.Errorf("a survey of a blank disk has read %d of %d bytes and found %q", a.Read, a.Size, a.Content)
		}
		return nil
	})
	ours := time.Since(begun)
	if err != nil {
		return result{}, err
	}
	begun = time.Now()
	if out, err := exec.Command("dd", "if="+d.Name(), "of=/dev/null", "bs=4M", "iflag=direct").CombinedOutput(); err != nil {
		return result{}, fmt.Errorf("dd: %w: %s", err, out)
	}
	theirs := time.Since(begun)
	rate := func(took time.Duration) float64 { return diskSize / (1 << 20) / took.Seconds() }
	floor, ratio := rate(theirs), rate(ours)/rate(theirs)
	return result{
		Name: "a disk is surveyed", Value: rate(ours), Unit: "MiB/s", Floor: &floor, Ratio: &ratio, Runs: 1, Budget: "0.8 x dd", OK: ratio >= 0.8,
	}.noted("with the quick check that precedes it, and the start of the process"), nil
}

// startForEach starts the program for each connection, as systemd does for a socket with Accept=yes.
func startForEach(listener *net.UnixListener, program string) {
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		if stdin, err := conn.File(); err == nil {
			child := exec.Command(program)
			child.Stdin, child.Stderr = stdin, os.Stderr
			if child.Start() == nil {
				go child.Wait() // what it has to say it says in its answer
			}
			stdin.Close()
		}
		conn.Close()
	}
}

// loopDisk is a disk that is a file.
type loopDisk struct {
	*os.File
	sysPath, seq string
}

// newLoop makes a disk of zeroes out of a new file. Its Close takes it away.
func newLoop(file string) (*loopDisk, error) {
	backing, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	if err := backing.Truncate(diskSize); err != nil {
		return nil, err
	}
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
	disk, err := os.OpenFile("/dev/"+name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlLoopConfigure(int(disk.Fd()), &unix.LoopConfig{Fd: uint32(backing.Fd())}); err != nil {
		disk.Close()
		return nil, fmt.Errorf("make %s of %s: %w", name, file, err)
	}
	d := &loopDisk{File: disk, sysPath: "/sys/devices/virtual/block/" + name}
	seq, err := os.ReadFile(d.sysPath + "/diskseq")
	d.seq = strings.TrimSpace(string(seq))
	return d, err
}

func (d *loopDisk) Close() error {
	return errors.Join(unix.IoctlSetInt(int(d.Fd()), unix.LOOP_CLR_FD, 0), d.File.Close())
}

// forget drops what of the disk is in memory, as the kernel does when nobody has it open any more. BLKFLSBUF is in
// include/uapi/linux/fs.h.
func (d *loopDisk) forget() error {
	const blkFlsBuf = 0x1261
	return unix.IoctlSetInt(int(d.Fd()), blkFlsBuf, 0)
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
	r.Identity = []device.Attribute{{Name: "diskseq", Value: d.seq}}
	a, err := client.Do(context.Background(), r)
	if err == nil {
		err = a.Err()
	}
	if err == nil && check != nil {
		err = check(a)
	}
	return err
}

// readAsMuch reads the first and the last 16 MiB and 4,096 blocks between, as the helper does.
func (d *loopDisk) readAsMuch() error {
	if err := d.forget(); err != nil {
		return err
	}
	const edge, block, blocks = 16 << 20, 4096, 4096
	b := make([]byte, edge)
	for n := range int64(blocks) {
		if _, err := d.ReadAt(b[:block], edge+n*(diskSize-2*edge)/blocks); err != nil {
			return err
		}
	}
	for _, offset := range [...]int64{0, diskSize - edge} {
		if _, err := d.ReadAt(b, offset); err != nil {
			return err
		}
	}
	return nil
}
