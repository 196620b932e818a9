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
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/internal/liveness"
	"github.com/metalplug/metalplug/udev"
)

// recheckInterval is how long the daemon waits after an event before it compares the mounts. The command rm -rf first empties a
// directory, which causes the event, and then removes the directory.
const recheckInterval = time.Second

// view identifies a directory by its file system and by its path within this file system. If the directory is mounted at
// several places, all these places have the same view.
type view struct{ device, path string }

// deleted is the suffix that the kernel appends to the root of a mount in mountinfo when the mounted directory is removed (d_path
// in fs/d_path.c; show_mountinfo adds a slash).
const deleted = "//deleted"

// viewOf returns the view of a path in a mount namespace, or the zero view if it is unknown. The parameter mountinfo is the
// text of /proc/PID/mountinfo (proc(5)) for that namespace. The path must not contain symbolic links.
func viewOf(mountinfo, path string) view {
	found, length := view{}, -1
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line) // ID, parent, major:minor, root, mount point, ...
		if len(fields) < 5 {
			continue
		}
		root, point := fields[3], fields[4]
		rest, below := strings.CutPrefix(path, strings.TrimSuffix(point, "/"))
		if !below || rest != "" && rest[0] != '/' || len(point) < length {
			continue
		}
		// If several mounts share a mount point, the last one is on top.
		found, length = view{fields[2], strings.TrimSuffix(root, "/") + rest}, len(point)
	}
	return found
}

// isVisible reports whether v can be reached at any path in the mount namespace that mountinfo describes. A path does not count
// if a later mount covers it.
func (v view) isVisible(mountinfo string) bool {
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[2] != v.device {
			continue
		}
		root, point := strings.TrimSuffix(fields[3], "/"), strings.TrimSuffix(fields[4], "/")
		if rest, below := strings.CutPrefix(v.path, root); below && viewOf(mountinfo, point+rest) == v {
			return true
		}
	}
	return false
}

// mount is a directory that the unit's sandbox may bind-mount. mount records which directory the daemon and process 1 see at the
// path.
type mount struct {
	key               string // configuration key that sets the path
	path              string
	ownView, hostView view // of the daemon and of process 1; they also differ if a link on the node leads elsewhere
	// visible is true if process 1 can reach the daemon's directory at some path.
	visible bool
}

// newMount records which directory the daemon and process 1 see at a path now.
func newMount(proc, key, path string) mount {
	m := mount{key: key, path: path}
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	ownTable, err := os.ReadFile(filepath.Join(proc, "self/mountinfo"))
	hostTable, hostErr := os.ReadFile(filepath.Join(proc, "1/mountinfo"))
	own, host := viewOf(string(ownTable), path), viewOf(string(hostTable), path)
	if err == nil && hostErr == nil && own != (view{}) && host != (view{}) {
		m.ownView, m.hostView, m.visible = own, host, own.isVisible(string(hostTable))
	}
	return m
}

// isHidden reports whether the path is missing inside the daemon's sandbox, but may exist outside.
func (m mount) isHidden() bool {
	_, err := os.Stat(m.path)
	return m.ownView != m.hostView && errors.Is(err, os.ErrNotExist) && !strings.HasSuffix(m.ownView.path, deleted)
}

// checkReplaced returns an error if the directory was removed or replaced since m was created, because the daemon still sees the
// old directory. The kernel updates the path in mountinfo when a bind-mounted directory, or one of its parents, is renamed or
// removed.
func (m mount) checkReplaced(proc string) error {
	now := newMount(proc, m.key, m.path)
	moved := now.ownView != m.ownView || strings.HasSuffix(now.ownView.path, deleted)
	if now.ownView == now.hostView || !moved && now.visible == m.visible {
		return nil
	}
	return fmt.Errorf("%s: %s was replaced, but the sandbox still shows the old directory (%s); systemctl restart metalplugd", m.key, m.path, now.ownView.path)
}

// watchMounts returns an error when one of the kubelet's directories is replaced, so that systemd restarts the daemon with new
// mounts. watchMounts compares the mounts after each event in the kubelet's directory, after each change to the node's mounts,
// and every five minutes.
func (d *daemon) watchMounts(ctx context.Context, ready func()) error {
	paths := d.Config.Paths
	dirs := []mount{
		newMount(paths.Proc, "paths.device_plugins", paths.DevicePlugins),
		newMount(paths.Proc, "paths.pod_resources", filepath.Dir(paths.PodResources)),
	}
	for _, m := range dirs {
		if m.isHidden() {
			d.Log.Error("directory hidden", "err", fmt.Errorf("%s: the unit does not bind %s; "+
				"add BindPaths=%[2]s to a drop-in, see OTHER DIRECTORIES in metalplugd(8)", m.key, m.path))
		}
	}
	hints, stop := d.watch.Subscribe()
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	mounted := make(chan struct{}, 1)
	var table sync.WaitGroup
	table.Go(func() {
		// If the mount table cannot be watched, the daemon still compares the mounts after events and every five minutes.
		_ = udev.WatchMountTable(ctx, paths.Proc, func() { liveness.Poke(mounted) })
	})
	defer table.Wait()
	defer cancel()
	ready()
	for pause := recheckInterval; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-hints:
			pause = recheckInterval
		case <-mounted:
			pause = recheckInterval
		case <-time.After(pause):
			pause = checkInterval
		}
		for _, m := range dirs {
			if err := m.checkReplaced(paths.Proc); err != nil {
				return err
			}
		}
	}
}

// CheckCDI returns an error if a resource needs CDI specs but the sandbox hides the directory for them. The sandbox shows this
// directory only if a resource needed it when the unit started. CheckCDI does not write to the directory.
func CheckCDI(c config.Config) error {
	if !slices.ContainsFunc(c.Resources, config.Resource.WritesSpecs) {
		return nil
	}
	dir := c.Paths.CDI
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil {
			break
		}
	}
	if errors.Is(unix.Access(dir, unix.W_OK), unix.EROFS) {
		return fmt.Errorf("inject = \"cdi\" or serve = \"dra\": the sandbox has no %s, which is mounted when metalplugd starts: systemctl restart metalplugd", c.Paths.CDI)
	}
	return nil
}
