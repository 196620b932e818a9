// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/need"
)

// root is a directory for cgroups, real ones or not.
type root struct {
	*testing.T
	root string // what Watch and Pods are told
	dir  string // of the hierarchy
}

// plainRoot is a directory without a cgroup in it.
func plainRoot(t *testing.T) root {
	t.Helper()
	dir := t.TempDir()
	tree{t, dir}.write(controllersFile, "")
	return root{t, dir, dir}
}

// realRoot is a new cgroup below the root of a hierarchy of version 1 or 2.
func realRoot(t *testing.T, version int) root {
	t.Helper()
	places := make(map[int]string) // by version
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

// removeCgroup removes a cgroup and those below it, which are directories with files that cannot be removed.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeCgroup(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, unix.Rmdir(dir))
}

// do carries out commands: "+PATH" makes a directory, "-PATH" removes an empty one.
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

// roots are the kinds of directories that each test of pods runs in.
var roots = map[string]func(*testing.T) root{
	"plain":    plainRoot,
	"cgroup 1": func(t *testing.T) root { return realRoot(t, 1) },
	"cgroup 2": func(t *testing.T) root { return realRoot(t, 2) },
}

// watching is a Watch that runs.
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
	watch := Watch{
		Root: dir,
		Came: func(uid string) { w.reports <- "+" + uid },
		Gone: func(uid string) { w.reports <- "-" + uid },
	}
	go func() { w.done <- watch.Run(ctx, func() { w.reports <- "started" }) }()
	t.Cleanup(stop)
	return w
}

// expect waits for reports, in this order.
func (w watching) expect(reports ...string) {
	w.Helper()
	for _, want := range reports {
		select {
		case got := <-w.reports:
			if got != want {
				w.Fatalf("report %q, want %q", got, want)
			}
		case err := <-w.done:
			w.Fatalf("no %q: %v", want, err)
		case <-time.After(10 * time.Second):
			w.Fatalf("no %q", want)
		}
	}
}

// end ends the watch, which has nothing more to say.
func (w watching) end() {
	w.Helper()
	w.stop()
	if err := <-w.done; err != nil {
		w.Errorf("Run: %v", err)
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
			w := startWatch(t, r.root)
			w.expect("started") // without a kubelet

			r.do("+kubepods", "+kubepods/burstable", "+kubepods/besteffort", "+kubepods/poda")
			w.expect("+a")
			r.do("+kubepods/burstable/podb", "+kubepods/burstable/podb/"+id1, "-kubepods/burstable/podb/"+id1)
			w.expect("+b")
			r.do("-kubepods/burstable/podb")
			w.expect("-b")
			r.do("-kubepods/poda")
			w.expect("-a")

			// The kubelet changes to the other driver.
			r.do("-kubepods/besteffort", "-kubepods/burstable", "-kubepods", "+kubepods.slice", "+"+burstable)
			r.do("+" + burstable + "/kubepods-burstable-pod" + uid_ + ".slice")
			w.expect("+" + uid)
			// All of it is replaced.
			r.do("-"+burstable+"/kubepods-burstable-pod"+uid_+".slice", "-"+burstable, "-kubepods.slice")
			w.expect("-" + uid)
			r.do("+kubepods.slice", "+"+burstable, "+"+burstable+"/kubepods-burstable-pod"+uid2_+".slice")
			w.expect("+" + uid2)

			// A kubelet with a --cgroup-root, as in kind, beside it.
			r.do("+a.slice", "+a.slice/a-b.slice", "+a.slice/a-b.slice/a-b-kubepods.slice", "+a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-podx_y.slice")
			w.expect("+x-y")
			r.do("-a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-podx_y.slice")
			w.expect("-x-y")

			// What is no pod is not reported: the next report is that of the pod after it.
			r.do("+system.slice", "+system.slice/kubepods", "+system.slice/kubepods/poda", "+kubepods.slice/x.slice", "+kubepods.slice/kubepods-podz.slice")
			w.expect("+z")
			w.end()
		})
	}
}

func TestWatchFindsWhatIsThere(t *testing.T) {
	for kind, newRoot := range roots {
		t.Run(kind, func(t *testing.T) {
			r := newRoot(t)
			r.do("+kubelet", "+kubelet/kubepods", "+kubelet/kubepods/besteffort", "+kubelet/kubepods/besteffort/poda")
			w := startWatch(t, r.root)
			w.expect("+a", "started")
			r.do("-kubelet/kubepods/besteffort/poda")
			w.expect("-a")
			w.end()
		})
	}
}

// TestWatchesEnd: a watch on a cgroup that is removed does not end by itself, and there may be only so many.
func TestWatchesEnd(t *testing.T) {
	for kind, newRoot := range roots {
		t.Run(kind, func(t *testing.T) {
			r := newRoot(t)
			n, err := newNotifier()
			if err != nil {
				t.Fatal(err)
			}
			defer n.close()
			w := Watch{Root: r.root}
			for range 10 {
				r.do("+kubepods", "+kubepods/burstable")
				if _, err := w.look(n); err != nil {
					t.Fatal(err)
				}
				if got := watches(t, n); got != 3 || len(n.dirs) != 3 {
					t.Errorf("%d watches on %v, want 3", got, n.dirs)
				}
				r.do("-kubepods/burstable", "-kubepods")
				if _, err := w.look(n); err != nil {
					t.Fatal(err)
				}
				if got := watches(t, n); got != 1 || len(n.dirs) != 1 {
					t.Errorf("%d watches on %v, want 1", got, n.dirs)
				}
			}
		})
	}
}

// watches asks the kernel how many watches there are (proc_pid_fdinfo(5)).
func watches(t *testing.T, n *notifier) (count int) {
	t.Helper()
	err := n.control(func(fd int) error {
		text, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
		count = strings.Count(string(text), "inotify wd:")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return count
}

func TestWatchReportsAfterAnOverflow(t *testing.T) {
	r := plainRoot(t)
	r.do("+kubepods")
	ctx, stop := context.WithCancel(t.Context())
	came, release := make(chan string), make(chan struct{})
	gone := make(map[string]int)
	done := make(chan error, 1)
	watch := Watch{
		Root: r.root,
		Came: func(uid string) {
			came <- uid
			<-release
		},
		Gone: func(uid string) { gone[uid]++ },
	}
	go func() { done <- watch.Run(ctx, func() {}) }()
	r.do("+kubepods/podfirst")
	if uid := <-came; uid != "first" {
		t.Fatalf("pod %q came", uid)
	}
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	limit, atoiErr := strconv.Atoi(strings.TrimSpace(string(text)))
	if err := errors.Join(err, atoiErr); err != nil || limit > 1<<17 {
		need.Lacks(t, "root", "a queue of %d events is not to be filled: %v", limit, err)
	}
	for i := range limit/2 + 1 { // nobody reads them meanwhile
		r.do(fmt.Sprintf("+kubepods/podx%d", i), fmt.Sprintf("-kubepods/podx%d", i))
	}
	r.do("-kubepods/podfirst", "+kubepods/podlast") // which no event tells
	close(release)
	if uid := <-came; uid != "last" {
		t.Errorf("pod %q came", uid)
	}
	stop()
	if err := <-done; err != nil || gone["first"] != 1 || gone["last"] != 0 {
		t.Errorf("Run: %v; first was reported gone %d times, last %d times", err, gone["first"], gone["last"])
	}
}

// TestWatchReportsWhatItHasNotSeen: a pod that is gone before there was time to look.
func TestWatchReportsWhatItHasNotSeen(t *testing.T) {
	var reports []string
	w := Watch{Gone: func(uid string) { reports = append(reports, "-"+uid) }}
	there := map[string][]string{"a": {"x"}}
	touched := podsOf([]change{
		{"/sys/fs/cgroup/kubepods", "poda"},
		{"/sys/fs/cgroup/kubepods", "podb"},
		{"/sys/fs/cgroup/kubepods.slice", "kubepods-podc.slice"},
		{"/sys/fs/cgroup/kubepods", "burstable"},
		{"/sys/fs/cgroup", "podd"},
		{"", ""},
	})
	w.report(there, there, touched)
	slices.Sort(reports)
	if want := []string{"-b", "-c"}; !slices.Equal(reports, want) {
		t.Errorf("reports %q, want %q", reports, want)
	}
}

// TestWatchSettles: what happened during a look is not told of again after it.
func TestWatchSettles(t *testing.T) {
	for kind, newRoot := range roots {
		t.Run(kind, func(t *testing.T) {
			r := newRoot(t)
			n, err := newNotifier()
			if err != nil {
				t.Fatal(err)
			}
			defer n.close()
			w := Watch{Root: r.root}
			if _, err := w.look(n); err != nil {
				t.Fatal(err)
			}
			r.do("+kubepods", "+kubepods/poda")
			if _, err := w.look(n); err != nil {
				t.Fatal(err)
			}
			r.do("-kubepods/poda", "+kubepods/podb")
			pods, changes, err := w.settle(n, nil)
			touched := slices.Sorted(maps.Keys(podsOf(changes)))
			if err != nil || len(pods) != 1 || len(pods["b"]) != 1 || !slices.Equal(touched, []string{"a", "b"}) {
				t.Errorf("settle = %v, %v, %v", pods, changes, err)
			}
			if late, err := n.pending(); len(late) > 0 || err != nil {
				t.Errorf("still to be told: %v, %v", late, err)
			}
		})
	}
}

func TestWatchErrors(t *testing.T) {
	never := func() { t.Error("it has started") }
	w := Watch{Root: t.TempDir(), Gone: func(string) {}}
	if err := w.Run(t.Context(), never); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Run in a directory of no cgroups: %v", err)
	}
	// The hierarchy goes while it is watched: that says nothing of the pods.
	r := plainRoot(t)
	r.do("+kubepods", "+kubepods/poda")
	running := startWatch(t, r.root)
	running.expect("+a", "started")
	if err := os.Rename(r.root, r.root+".gone"); err != nil {
		t.Fatal(err)
	}
	if err := <-running.done; !errors.Is(err, fs.ErrNotExist) || len(running.reports) > 0 {
		t.Errorf("Run when the hierarchy is gone: %v, %d reports", err, len(running.reports))
	}
}

func TestParseOfEvents(t *testing.T) {
	n := notifier{dirs: map[int]string{1: "/a"}}
	event := func(wd, mask, size uint32, name string) string {
		var head []byte
		for _, field := range []uint32{wd, mask, 0, size} {
			head = binary.NativeEndian.AppendUint32(head, field)
		}
		return string(head) + name
	}
	for _, c := range []struct {
		name, events string
		want         []change
	}{
		{"nothing", "", nil},
		{"a name", event(1, 1, 8, "podx\x00\x00\x00\x00"), []change{{"/a", "podx"}}},
		{"no name", event(1, 1, 0, ""), []change{{"/a", ""}}},
		{"two, one of an unknown watch", event(1, 1, 4, "abc\x00") + event(2, 1, 4, "abcd"), []change{{"/a", "abc"}, {"", "abcd"}}},
		{"the end of a watch", event(1, unix.IN_IGNORED, 0, ""), nil},
		{"cut short", event(1, 1, 200, "abc"), []change{{"/a", "abc"}}},
		{"too short", event(1, 1, 0, "")[:15], nil},
	} {
		if got := n.parse([]byte(c.events)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestWatchWithoutCgroups: where pods have no cgroups there is nothing to watch, and that is no error.
func TestWatchWithoutCgroups(t *testing.T) {
	w := startWatch(t, "")
	w.expect("started")
	w.stop()
	if err := <-w.done; err != nil {
		t.Errorf("Run = %v", err)
	}
}
