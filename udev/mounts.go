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

// WatchMountTable calls the function "changed" after each change to the mounts of process 1. When ctx ends, WatchMountTable
// returns the context's error. The parameter proc is the mount point of procfs.
func WatchMountTable(ctx context.Context, proc string, changed func()) error {
	t, err := openTable(filepath.Join(proc, "1/mountinfo"), func(line string) []string { return []string{line} })
	if err != nil {
		return err
	}
	defer t.file.Close()
	return t.watchChanges(ctx, func() error {
		changed()
		return nil
	})
}

// table is a file in procfs that lists mounts or swap space. The kernel signals a change as an exceptional condition of the open
// file, which wakes Go's poller (POLLPRI in poll(2), mounts_poll in fs/proc_namespace.c, swaps_poll in mm/swapfile.c).
type table struct {
	file *os.File
	keys func(line string) []string // returns the keys in a line; changes that leave the set of keys the same are ignored
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

// listen sends an [Event] with the action [Mounts] each time the set of block devices that are mounted or used for swap changes.
// When ctx ends, listen returns the context's error. Devices that are already in use when listen starts cause no event.
func (t *table) listen(ctx context.Context, events chan<- Event) error {
	return t.watchChanges(ctx, func() error { return send(ctx, Event{Action: Mounts, Received: time.Now()}, events) })
}

// watchChanges waits for changes to the file until ctx ends, and calls the function "report" if the keys have changed.
func (t *table) watchChanges(ctx context.Context, report func() error) error {
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

// read parses the file, and returns the keys in all its lines.
func (t *table) read() (map[string]struct{}, error) {
	// The kernel regenerates the text for each read from offset 0.
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
		// For tmpfs, btrfs and some other file systems, the major number is 0, which belongs to no block device.
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
