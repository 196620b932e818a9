// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/device"
)

// holding asks the helper that sees all processes. What it could not look at counts as somebody who has a node open. It
// waits until we are not at work on the devices ourselves: a helper of ours that reads a disk is nobody in the way.
func (h *hands) holding(ctx context.Context, nodes []string) ([]device.Holder, error) {
	paths := make(map[cgroup.Number]string)
	var numbers []cgroup.Number
	var ours []string
	for _, path := range nodes {
		n, err := numberOf(path)
		if err != nil {
			return nil, err
		}
		for _, n := range append(slices.Concat(h.partitions(n), h.twins(n)), n) {
			paths[n] = path
			numbers = append(numbers, n)
			ours = append(ours, h.sysPathOf(n))
		}
	}
	release, err := h.claimAll(ctx, ours)
	if err != nil {
		return nil, err
	}
	defer release()
	answer, err := h.holders.Holders(ctx, numbers)
	if err != nil {
		return nil, err
	}
	var holders []device.Holder
	for _, holder := range answer.Holders {
		holders = append(holders, device.Holder{
			PID: holder.PID, Command: holder.Comm, Node: paths[holder.Number], PodUID: holder.Container.PodUID,
		})
	}
	return holders, nil
}

// claimAll claims several devices, each once and in one order, so that two of us cannot wait for each other.
func (h *hands) claimAll(ctx context.Context, paths []string) (release func(), err error) {
	paths = slices.DeleteFunc(paths, func(path string) bool { return path == "" })
	slices.Sort(paths)
	var releases []func()
	release = func() {
		for _, one := range releases {
			one()
		}
	}
	for _, path := range slices.Compact(paths) {
		one, err := h.claim(ctx, path)
		if err != nil {
			release()
			return nil, err
		}
		releases = append(releases, one)
	}
	return release, nil
}

// numberOf returns the number of the device that a node stands for.
func numberOf(path string) (n cgroup.Number, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return n, fmt.Errorf("look for %s: %w", path, err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&os.ModeDevice == 0 {
		return n, fmt.Errorf("look for %s: it is no device node", path)
	}
	return cgroup.Number{
		Block: info.Mode()&os.ModeCharDevice == 0, Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev),
	}, nil
}

// sysPathOf returns where in sysfs a device is; empty: it is gone (Documentation/ABI/testing/sysfs-dev).
func (h *hands) sysPathOf(n cgroup.Number) string {
	kind := "char"
	if n.Block {
		kind = "block"
	}
	dir, err := filepath.EvalSymlinks(fmt.Sprintf("%s/dev/%s/%d:%d", h.sysfs, kind, n.Major, n.Minor))
	if err != nil {
		return ""
	}
	return dir
}

// partitions returns the numbers of a disk's partitions: who has one of them open has the disk open
// (Documentation/ABI/stable/sysfs-block: partition, dev).
func (h *hands) partitions(disk cgroup.Number) []cgroup.Number {
	if !disk.Block {
		return nil
	}
	files, _ := filepath.Glob(fmt.Sprintf("%s/dev/block/%d:%d/*/partition", h.sysfs, disk.Major, disk.Minor))
	var numbers []cgroup.Number
	for _, file := range files {
		n := cgroup.Number{Block: true}
		text, err := os.ReadFile(filepath.Join(filepath.Dir(file), "dev"))
		if err != nil {
			continue // it is going
		}
		if _, err := fmt.Sscanf(string(text), "%d:%d", &n.Major, &n.Minor); err == nil {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// twins returns the number of the other node of an NVMe namespace, of /dev/ng1n1 for /dev/nvme1n1 and the other way round:
// an exclusive open of the disk does not notice whoever has that open.
func (h *hands) twins(n cgroup.Number) []cgroup.Number {
	prefix, other := "ng", "nvme"
	if n.Block {
		prefix, other = "nvme", "ng"
	}
	dir := h.sysPathOf(n)
	name, ok := strings.CutPrefix(filepath.Base(dir), prefix)
	if !ok {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(dir), other+name, "dev"))
	if err != nil { // of a namespace with one node, and of a partition
		return nil
	}
	twin := cgroup.Number{Block: !n.Block}
	if _, err := fmt.Sscanf(string(text), "%d:%d", &twin.Major, &twin.Minor); err != nil {
		return nil
	}
	return []cgroup.Number{twin}
}
