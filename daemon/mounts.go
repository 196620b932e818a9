// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/udev"
)

// remount is the remedy for a mount of the sandbox that is not what it should be: a start makes all of them.
const remount = "systemctl restart metalplugd"

// recheck is how long after a hint the mounts are compared again: rm -rf first empties a directory, which is the hint,
// and then removes it.
var recheck = [...]time.Duration{0, 200 * time.Millisecond, time.Second, 5 * time.Second}

// view is what a path leads to: a directory in a file system, whatever mount shows it.
type view struct{ device, path string }

// deleted ends the root of a mount whose directory was removed (d_path in fs/d_path.c; show_mountinfo has one slash more).
const deleted = "//deleted"

// viewOf returns what a path without symbolic links leads to in a mount namespace, by its /proc/PID/mountinfo (proc(5)).
// The zero view: it cannot be told.
func viewOf(mountinfo, path string) view {
	found, length := view{}, -1
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line) // ID, parent, major:minor, root, mount point, ...
		if len(fields) < 5 {
			continue
		}
		root, point := unescape(fields[3]), unescape(fields[4])
		rest, below := strings.CutPrefix(path, strings.TrimSuffix(point, "/"))
		if !below || rest != "" && rest[0] != '/' || len(point) < length {
			continue
		}
		// Of several mounts at one point, the last is on top.
		found, length = view{fields[2], strings.TrimSuffix(root, "/") + rest}, len(point)
	}
	return found
}

// unescape undoes what the kernel does to separators in mountinfo (mangle in fs/seq_file.c).
func unescape(name string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(name)
}

// mount is one directory that the sandbox may bind.
type mount struct {
	key  string // of the configuration
	path string
}

// mounts compares what the daemon sees of some directories with what the host has in their place.
type mounts struct {
	proc   string
	dirs   []mount
	silent map[string]bool // those that differed at the start, by path: the comparison says nothing of them
}

// newMounts returns the comparison for some directories, and those of them that the sandbox hides.
func newMounts(proc string, dirs ...mount) (m *mounts, hidden []mount) {
	m = &mounts{proc: proc, dirs: dirs, silent: make(map[string]bool)}
	for _, d := range dirs {
		own, differs := m.compare(d.path)
		if !differs || strings.HasSuffix(own.path, deleted) {
			continue
		}
		m.silent[d.path] = true
		if _, err := os.Stat(d.path); errors.Is(err, os.ErrNotExist) {
			hidden = append(hidden, d)
		}
	}
	return m, hidden
}

// compare returns what the daemon sees at a path, and reports whether the host has something else there.
func (m *mounts) compare(path string) (own view, differs bool) {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	ours, err := os.ReadFile(filepath.Join(m.proc, "self/mountinfo"))
	if err != nil {
		return view{}, false
	}
	hosts, err := os.ReadFile(filepath.Join(m.proc, "1/mountinfo"))
	if err != nil {
		return view{}, false
	}
	own, host := viewOf(string(ours), path), viewOf(string(hosts), path)
	return own, own != (view{}) && host != (view{}) && own != host
}

// replaced returns an error for a directory that was removed or replaced since the start: the daemon has the old one.
func (m *mounts) replaced() error {
	for _, d := range m.dirs {
		if own, differs := m.compare(d.path); differs && !m.silent[d.path] {
			return fmt.Errorf("%s: %s was replaced, and the sandbox shows the old one (%s); a restart shows the new one",
				d.key, d.path, own.path)
		}
	}
	return nil
}

// watchMounts ends with an error when a directory of the kubelet was replaced, so that systemd starts the daemon again
// with new mounts. It compares them after each event in the kubelet's directory, after each change of the node's mounts, and
// as often as everything is enumerated.
func (d *daemon) watchMounts(ctx context.Context, ready func()) error {
	paths := d.Config.Paths
	m, hidden := newMounts(paths.Proc,
		mount{"paths.device_plugins", paths.DevicePlugins}, mount{"paths.pod_resources", filepath.Dir(paths.PodResources)})
	for _, h := range hidden {
		d.Log.Error("directory hidden", "err", fmt.Errorf("%s: the unit does not bind %s: "+
			"add BindPaths=%[2]s to a drop-in, see OTHER DIRECTORIES in metalplugd(8)", h.key, h.path))
	}
	hints, stop := d.watch.Subscribe()
	defer stop()
	mounted, end := mountHints(ctx, paths.Proc)
	defer end()
	ready()
	for left := recheck[:]; ; {
		pause := auditing
		if len(left) > 0 {
			pause, left = left[0], left[1:]
		}
		select {
		case <-ctx.Done():
			return nil
		case <-hints:
			left = recheck[:]
			continue
		case <-mounted:
		case <-time.After(pause):
		}
		if err := m.replaced(); err != nil {
			return err
		}
	}
}

// mountHints returns a channel on which a hint waits after the node's mounts have changed, and a function that ends that. A
// procfs without them gives no hint.
func mountHints(ctx context.Context, proc string) (hints <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	c, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		_ = udev.WatchMountTable(ctx, proc, func() {
			select {
			case c <- struct{}{}:
			default:
			}
		})
	}()
	return c, func() {
		cancel()
		<-ended
	}
}

// unbound returns an error where a new configuration needs a mount that only a start makes: of the directory that the
// configuration is read from, which was replaced, or of that of the CDI specs.
func (d *daemon) unbound(next config.Config) error {
	if err := d.files.replaced(); err != nil {
		return fmt.Errorf("%w: %s", err, remount)
	}
	return CheckCDI(next)
}

// CheckCDI returns an error where a resource has inject = "cdi" and the sandbox shows no directory for its spec: the unit
// binds it only where a resource used it at the start. It writes nothing.
func CheckCDI(c config.Config) error {
	if !slices.ContainsFunc(c.Resources, config.Resource.NeedsSpec) {
		return nil
	}
	dir := c.Paths.CDI
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil {
			break
		}
	}
	if errors.Is(unix.Access(dir, unix.W_OK), unix.EROFS) {
		return fmt.Errorf("inject = \"cdi\": the sandbox has no %s, which it gets at a start: %s", c.Paths.CDI, remount)
	}
	return nil
}
