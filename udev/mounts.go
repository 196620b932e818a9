// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// WatchMountTable calls the function changed each time the mounts of process 1 have changed. When ctx ends, WatchMountTable
// returns the context's error. The parameter proc is the mount point of procfs. WatchMountTable sleeps until the kernel reports a
// change.
func WatchMountTable(ctx context.Context, proc string, changed func()) error {
	t, err := openTable(filepath.Join(proc, "1/mountinfo"), func(line string) []string { return []string{line} })
	if err != nil {
		return err
	}
	defer t.file.Close()
	return t.each(ctx, func() error {
		changed()
		return nil
	})
}

// table is a file in procfs that lists mounts or swap space. The runtime's poller reports changes to the file. For each open
// file, the kernel signals a change since the last poll as an exceptional condition (POLLPRI in poll(2), mounts_poll in
// fs/proc_namespace.c, swaps_poll in mm/swapfile.c).
type table struct {
	file *os.File
	keys func(line string) []string // returns the keys in a line; only a change to the set of keys is reported
	used map[string]struct{}        // the keys at the last report
}

// openMounts opens the swap table, the mount table of this process and, if permitted, the mount table of process 1. The daemon's
// unit has its own mount namespace, so the two mount tables differ. The parameter proc is the mount point of procfs.
func openMounts(proc string) (tables []*table, err error) {
	for i, name := range []string{"self/mountinfo", "1/mountinfo", "swaps"} {
		t, err := openTable(filepath.Join(proc, name), usedDevices)
		switch {
		case err == nil:
			tables = append(tables, t)
		case i == 0:
			return nil, err
		}
	}
	return tables, nil
}

func closeTables(tables []*table) {
	for _, t := range tables {
		t.file.Close()
	}
}

// openTable opens a file and reads it once, so that the kernel reports each later change.
func openTable(name string, keys func(line string) []string) (*table, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("watch mounts: %w", err)
	}
	t := &table{file: file, keys: keys}
	if t.used, err = t.read(); err != nil {
		file.Close()
		return nil, fmt.Errorf("watch mounts: %w", err)
	}
	return t, nil
}

// listen sends an [Event] with the action [Mounts] each time a block device begins or ceases to be mounted or used for swap. When
// ctx ends, listen returns the context's error. Devices that are already in use when listen starts cause no event.
func (t *table) listen(ctx context.Context, events chan<- Event) error {
	return t.each(ctx, func() error { return send(ctx, Event{Action: Mounts, Received: time.Now()}, events) })
}

// each calls the function report after each change to the keys. each reads the file again whenever the poller wakes up.
func (t *table) each(ctx context.Context, report func() error) error {
	var used map[string]struct{}
	return pollEach(ctx, "watch mounts", t.file, func(int) (err error) {
		if used, err = t.read(); err == nil && maps.Equal(used, t.used) {
			err = unix.EAGAIN
		}
		return err
	}, func() error {
		t.used = used
		return report()
	})
}

// read returns the keys in all lines of the file.
func (t *table) read() (map[string]struct{}, error) {
	// When a read begins at offset 0, the kernel generates the text again.
	text, err := io.ReadAll(io.NewSectionReader(t.file, 0, 1<<62))
	if err != nil {
		return nil, err
	}
	used := make(map[string]struct{})
	for line := range strings.Lines(string(text)) {
		for _, key := range t.keys(line) {
			used[key] = struct{}{}
		}
	}
	return used, nil
}

// usedDevices returns the block devices in a line of /proc/swaps or /proc/PID/mountinfo (proc_pid_mountinfo(5)). For a mounted
// device, the result consists of MAJOR:MINOR and the path below /dev. For swap space, the result is the path below /dev.
func usedDevices(line string) (used []string) {
	source := line
	if mount, rest, ok := strings.Cut(line, " - "); ok {
		// On tmpfs, btrfs and some other file systems, the major number is 0.
		if fields := strings.Fields(mount); len(fields) > 2 && !strings.HasPrefix(fields[2], "0:") {
			used = append(used, fields[2])
		}
		_, source, _ = strings.Cut(rest, " ") // the source follows the file system type
	}
	if name, _, _ := strings.Cut(strings.TrimSpace(source), " "); strings.HasPrefix(name, "/dev/") {
		used = append(used, name)
	}
	return used
}
