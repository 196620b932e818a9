// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/integration/need"
)

// root is a directory with real or simulated cgroups.
type root struct {
	*testing.T
	root string // argument of Watch and Pods
	dir  string // directory of the hierarchy
}

// plainRoot returns a directory without cgroups.
func plainRoot(t *testing.T) root {
	t.Helper()
	dir := t.TempDir()
	tree{t, dir}.write("cgroup.controllers", "")
	return root{t, dir, dir}
}

// realRoot is a new cgroup below the root of a hierarchy of version 1 or 2.
func realRoot(t *testing.T, version int) root {
	t.Helper()
	places := make(map[int]string) // keys are cgroup versions
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids"} {
		var st unix.Statfs_t
		switch err := unix.Statfs(dir, &st); {
		case err == nil && st.Type == unix.CGROUP_SUPER_MAGIC:
			places[1] = dir
		case err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC:
			places[2] = dir
		}
	}
	place := places[version]
	if len(places) == 0 {
		need.Lacks(t, "root", "this host has no cgroups")
	} else if place == "" {
		need.Lacks(t, fmt.Sprintf("cgroup%d", version), "this host has cgroups of another version: %v", places)
	}
	dir, err := os.MkdirTemp(place, "metalplug-test-*")
	if err != nil {
		need.Lacks(t, "root", "no cgroup of version %d for this test: %v", version, err)
	}
	t.Cleanup(func() {
		if err := removeCgroup(dir); err != nil {
			t.Errorf("remove the cgroup: %v", err)
		}
	})
	r := root{t, dir, dir}
	if version == 1 {
		r.root = t.TempDir()
		if err := os.Symlink(dir, filepath.Join(r.root, "memory")); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// removeCgroup removes a cgroup and those below it, whose files cannot be removed separately.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeCgroup(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, unix.Rmdir(dir))
}

// do executes commands. "+PATH" creates a directory, and "-PATH" removes an empty one.
func (r root) do(commands ...string) {
	r.Helper()
	for _, c := range commands {
		dir := filepath.Join(r.dir, c[1:])
		err := error(nil)
		if c[0] == '+' {
			err = os.Mkdir(dir, 0o755)
		} else {
			err = unix.Rmdir(dir)
		}
		if err != nil {
			r.Fatalf("%s: %v", c, err)
		}
	}
}

// roots are the kinds of directories in which each test of pods runs.
var roots = map[string]func(*testing.T) root{
	"plain":    plainRoot,
	"cgroup 1": func(t *testing.T) root { return realRoot(t, 1) },
	"cgroup 2": func(t *testing.T) root { return realRoot(t, 2) },
}

// watching is a running Watch.
type watching struct {
	*testing.T
	reports chan string
	done    chan error
	stop    context.CancelFunc
}

func startWatch(t *testing.T, dir string) watching {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w := watching{t, make(chan string, 100), make(chan error, 1), stop}
	go func() {
		w.done <- cgroup.Watch(ctx, dir, func() { w.reports <- "started" }, func() { w.reports <- "gone" })
	}()
	t.Cleanup(stop)
	return w
}

// expect waits for a report.
func (w watching) expect(want string) {
	w.Helper()
	select {
	case got := <-w.reports:
		if got != want {
			w.Fatalf("report %q, want %q", got, want)
		}
	case err := <-w.done:
		w.Fatalf("no %q: %v", want, err)
	}
}

// end stops the watch, which must not report anything more.
func (w watching) end() {
	w.Helper()
	w.stop()
	if err := <-w.done; err != nil {
		w.Errorf("Watch: %v", err)
	}
	if len(w.reports) > 0 {
		w.Errorf("a report too many: %q", <-w.reports)
	}
}

func TestWatch(t *testing.T) {
	const burstable = "kubepods.slice/kubepods-burstable.slice"
	for kind, newRoot := range roots {
		t.Run(kind, func(t *testing.T) {
			r := newRoot(t)
			r.do("+kubelet", "+kubelet/kubepods", "+kubelet/kubepods/besteffort", "+kubelet/kubepods/besteffort/poda")
			w := startWatch(t, r.root)
			w.expect("started")
			gone := func(pod string) {
				t.Helper()
				r.do("-" + pod)
				w.expect("gone")
			}
			gone("kubelet/kubepods/besteffort/poda") // this cgroup existed at the start
			r.do("-kubelet/kubepods/besteffort", "-kubelet/kubepods", "-kubelet")

			r.do("+kubepods", "+kubepods/burstable", "+kubepods/besteffort", "+kubepods/poda")
			awaitWatches(t, r.dir+"/kubepods/burstable")
			gone("kubepods/poda")
			r.do("+kubepods/burstable/podb", "+kubepods/burstable/podb/"+id1, "-kubepods/burstable/podb/"+id1)
			gone("kubepods/burstable/podb")

			// The kubelet switches to the other driver.
			r.do("-kubepods/besteffort", "-kubepods/burstable", "-kubepods", "+kubepods.slice", "+kubepods.slice/kubepods-poda.slice")
			awaitWatches(t, r.dir+"/kubepods.slice")
			gone("kubepods.slice/kubepods-poda.slice")
			r.do("+" + burstable)
			awaitWatches(t, r.dir+"/"+burstable)
			r.do("+" + burstable + "/kubepods-burstable-pod" + uid_ + ".slice")
			gone(burstable + "/kubepods-burstable-pod" + uid_ + ".slice")

			// Another kubelet with a --cgroup-root, as in kind, runs next to it.
			r.do("+a.slice", "+a.slice/a-b.slice", "+a.slice/a-b.slice/a-b-kubepods.slice", "+a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-podx_y.slice")
			awaitWatches(t, r.dir+"/a.slice/a-b.slice/a-b-kubepods.slice")
			gone("a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-podx_y.slice")

			// The removal of a cgroup that is not a pod's is not reported.
			r.do("+system.slice", "+system.slice/kubepods", "+system.slice/kubepods/poda", "-system.slice/kubepods/poda", "+kubepods.slice/x.slice", "-kubepods.slice/x.slice")
			r.do("+kubepods.slice/kubepods-podz.slice")
			gone("kubepods.slice/kubepods-podz.slice")
			w.end()
		})
	}
}

// awaitWatches waits until a directory is watched (proc_pid_fdinfo(5)).
func awaitWatches(t *testing.T, dir string) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	for watchesOn(t, fmt.Sprintf("ino:%x ", st.Ino)) == 0 {
		runtime.Gosched()
	}
}

// watchesOn counts the watches of this process whose description contains a text.
func watchesOn(t *testing.T, text string) (count int) {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		all, _ := os.ReadFile(info) // the descriptor may already be closed
		for line := range strings.Lines(string(all)) {
			if strings.HasPrefix(line, "inotify wd:") && strings.Contains(line, text) {
				count++
			}
		}
	}
	return count
}

// TestWatchesEnd checks that the watch on a removed cgroup, which does not end automatically, is removed. The number of
// watches must stay bounded.
func TestWatchesEnd(t *testing.T) {
	for kind, newRoot := range roots {
		t.Run(kind, func(t *testing.T) {
			r := newRoot(t)
			w := startWatch(t, r.root)
			w.expect("started")
			for range 10 {
				r.do("+kubepods", "+kubepods/poda")
				awaitWatches(t, r.dir+"/kubepods")
				r.do("-kubepods/poda")
				w.expect("gone")
				if got := watchesOn(t, ""); got > 3 { // a watch of the last round may end with the next event
					t.Errorf("%d watches, at most 3", got)
				}
				r.do("-kubepods")
			}
			w.end()
		})
	}
}

func TestWatchReportsAfterAnOverflow(t *testing.T) {
	r := plainRoot(t)
	r.do("+kubepods", "+kubepods/poda")
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	limit, atoiErr := strconv.Atoi(strings.TrimSpace(string(text)))
	if err := errors.Join(err, atoiErr); err != nil || limit > 1<<17 {
		need.Lacks(t, "root", "a queue of %d events is not to be filled: %v", limit, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	err = cgroup.Watch(ctx, r.root, func() {
		for range limit/2 + 1 { // Watch does not read these events in the meantime
			r.do("+kubepods/x", "-kubepods/x")
		}
		r.do("-kubepods/poda") // no event reports this
	}, stop)
	if err != nil || ctx.Err() == nil {
		t.Errorf("Watch: %v, before the pod was reported", err)
	}
}

func TestWatchErrors(t *testing.T) {
	never := func() { t.Error("it has started") }
	if err := cgroup.Watch(t.Context(), t.TempDir(), never, never); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Watch in a directory of no cgroups: %v", err)
	}
	// A hierarchy that vanishes while it is watched does not mean that its pods have ended.
	r := plainRoot(t)
	r.do("+kubepods", "+kubepods/poda")
	running := startWatch(t, r.root)
	running.expect("started")
	if err := os.Rename(r.root, r.root+".gone"); err != nil {
		t.Fatal(err)
	}
	if err := <-running.done; !errors.Is(err, fs.ErrNotExist) || len(running.reports) > 0 {
		t.Errorf("Watch when the hierarchy is gone: %v, %d reports", err, len(running.reports))
	}
}
