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
	return milliseconds(what, ours, theirs, map[int]float64{50: 50, 99: 100}), nil
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
	a, err := client.Do(context.Background(), reset.Request{
		Op: reset.Probe, SysPath: d.sysPath, Class: "node", TimeoutMS: time.Minute.Milliseconds(),
		Identity: []reset.Attribute{{Name: "diskseq", Value: d.seq}},
	})
	if err == nil {
		err = a.Err()
	}
	if err == nil && a.Content != "" {
		err = fmt.Errorf("%s is on a disk of zeroes", a.Content)
	}
	return err
}

// readAsMuch reads the first and the last MiB and 64 blocks between, as the helper does.
func (d *loopDisk) readAsMuch() error {
	if err := d.forget(); err != nil {
		return err
	}
	const edge, block, blocks = 1 << 20, 4096, 64
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
