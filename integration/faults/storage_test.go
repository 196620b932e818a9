// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon"
	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
)

// volume is a file system with a few pages.
type volume struct {
	t   *testing.T
	dir string
}

// mount creates a volume at a directory, which it also creates.
func mount(t *testing.T, dir string) volume {
	t.Helper()
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = unix.Mount("faults", dir, "tmpfs", 0, "size=32k")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		_ = unix.Unmount(dir, unix.MNT_DETACH) // a protected volume has a second mount
	})
	return volume{t, dir}
}

// fill uses all free space of the volume, and free releases some.
func (v volume) fill() {
	v.t.Helper()
	err := os.WriteFile(filepath.Join(v.dir, "filler"), make([]byte, 64<<10), 0o600)
	if !errors.Is(err, unix.ENOSPC) {
		v.t.Fatalf("the volume is not full: %v", err)
	}
}

func (v volume) free() {
	v.t.Helper()
	if err := os.Remove(filepath.Join(v.dir, "filler")); err != nil {
		v.t.Fatal(err)
	}
}

// protect makes the volume read-only, and unprotect makes it writable again. Both use a second mount, because a file
// may be open for writing.
func (v volume) protect() {
	v.t.Helper()
	err := unix.Mount(v.dir, v.dir, "", unix.MS_BIND, "")
	if err == nil {
		err = unix.Mount("", v.dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	if err != nil {
		v.t.Fatal(err)
	}
}

func (v volume) unprotect() {
	v.t.Helper()
	if err := unix.Unmount(v.dir, unix.MNT_DETACH); err != nil {
		v.t.Fatal(err)
	}
}

// whole is a complete daemon with recorded hardware, whose configured paths are in one directory.
type whole struct {
	*sequence
	dir string
	end func() error
}

func newWhole(t *testing.T) *whole {
	t.Helper()
	s := &sequence{t: t, slow: map[string]bool{}, hardware: &hardware{widgets: map[string]string{"widget0": "W0"}}}
	s.disks = []*disk{{serial: fmt.Sprintf("%032x", 1), slot: 1, sequence: 1}}
	w := &whole{sequence: s, dir: shortDir(t)}
	for _, dir := range []string{"k", "state", "run", "cdi"} {
		s.must(os.Mkdir(filepath.Join(w.dir, dir), 0o755))
	}
	s.must(os.WriteFile(filepath.Join(w.dir, "recording"), []byte(s.text()), 0o600))
	s.setup.dir, s.setup.log = filepath.Join(w.dir, "k"), slog.New(slog.NewTextHandler(&s.journal, nil))
	s.kubeletStart()
	t.Cleanup(func() {
		if w.end != nil {
			if err := w.end(); err != nil {
				t.Error(err)
			}
		}
		s.kubeletStop()
		if t.Failed() {
			t.Logf("log:\n%s", s.journal.String())
		}
	})
	return w
}

const wholeText = `[paths]
device_plugins = "%[1]s/k"
pod_resources = "%[1]s/k.pods"
state = "%[1]s/state"
run = "%[1]s/run"
cdi = "%[1]s/cdi"
cgroup = ""
[hardware]
source = "recording:%[1]s/recording"
[[resource]]
name = "example.org/widget"
class = "node"
match = { SUBSYSTEM = "widget" }
inject = "cdi"
[[resource]]
name = "metalplug.io/nvme"
class = "nvme"
[resource.reset]
scrub = "discard"
when = "both"
timeout = "10s"
`

// run starts the daemon. The channel receives its result.
func (w *whole) run() (done <-chan error) {
	w.t.Helper()
	file := filepath.Join(w.dir, "metalplug.toml")
	w.must(os.WriteFile(file, fmt.Appendf(nil, wholeText, w.dir), 0o600))
	c, err := config.Load(file)
	w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- daemon.Run(ctx, daemon.Options{
			Config: c, Touch: w.touch(),
			Log: w.setup.log,
		})
	}()
	w.end = func() error {
		cancel()
		w.end = nil
		return <-ended
	}
	return ended
}

// waitOffered waits until both devices are offered.
func (w *whole) waitOffered() {
	w.t.Helper()
	w.waitShown(diskResource, w.disks[0].id(), pluginapi.Healthy)
	w.waitShown(widgetResource, "node-W0-widget", pluginapi.Healthy)
}

// trouble has functions that make a volume unusable, and usable again.
type trouble struct{ spoil, mend func(volume) }

var spoils = map[string]trouble{
	"full":      {volume.fill, volume.free},
	"read-only": {volume.protect, volume.unprotect},
}

// TestUnwritableState checks that the daemon offers a disk only when the evidence about this disk is saved, and
// starts no container with a disk whose later erasure cannot be saved. The daemon must offer all other devices.
func TestUnwritableState(t *testing.T) {
	needRoot(t)
	noLeaks(t)
	for how, v := range spoils {
		t.Run(how, func(t *testing.T) {
			w := newWhole(t)
			state := mount(t, filepath.Join(w.dir, "state"))
			v.spoil(state)
			w.run()
			w.waitShown(widgetResource, "node-W0-widget", pluginapi.Healthy)
			if err := eventually(func() error { _, err := w.readContent(w.disks[0].id(), "the evidence cannot be saved"); return err }); err != nil {
				t.Error(err)
			}
			w.waitReported("state not saved")
			v.mend(state)
			w.waitOffered()
			ids := w.admitPod("p1", diskResource)
			v.spoil(state)
			if err := w.kubelet.start(t.Context(), diskResource, ids); err == nil || !strings.Contains(err.Error(), "cannot be saved") {
				t.Errorf("a container starts though nothing can be kept: %v", err)
			}
			v.mend(state)
			if err := eventually(func() error { return w.kubelet.start(t.Context(), diskResource, ids) }); err != nil {
				t.Error(err)
			}
			w.waitReported("")
			text, err := os.ReadFile(filepath.Join(state.dir, "state.json"))
			if err != nil || !strings.Contains(string(text), ids[0]) {
				t.Errorf("kept is %q: %v", text, err)
			}
			if err := w.end(); err != nil {
				t.Error(err)
			}
		})
	}
}

// readContent returns the content of a disk. It returns an error unless the daemon gives this reason for withholding the disk.
func (w *whole) readContent(id, reason string) (content string, err error) {
	var d api.Device
	socket := filepath.Join(w.dir, "run", "control.sock")
	err = api.Client{Socket: socket}.Get(w.t.Context(), "/v1/devices/"+id, &d)
	if err == nil && (d.Health == "Healthy" || !strings.Contains(d.Reason, reason)) {
		err = fmt.Errorf("%s is %s (%s)", id, d.Health, d.Reason)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.find(id).content, err
}

// waitReported waits until the daemon reports that it cannot write the file. With "", it waits until the daemon reports no
// such file.
func (w *whole) waitReported(file string) {
	w.t.Helper()
	if err := eventually(func() error {
		var s api.Status
		if err := (api.Client{Socket: filepath.Join(w.dir, "run", "control.sock")}).Get(w.t.Context(), "/v1/status", &s); err != nil {
			return err
		}
		if told := strings.Join(s.Unwritten, "; "); !strings.Contains(told, file) || file == "" && told != "" {
			return fmt.Errorf("%w: it tells of %q, want %q", errNever, told, file)
		}
		return nil
	}); err != nil {
		w.t.Error(err)
	}
}

// TestUnwritableRunDirectory checks that the daemon offers the devices without the control socket, and logs that.
func TestUnwritableRunDirectory(t *testing.T) {
	needRoot(t)
	noLeaks(t)
	for how, v := range spoils {
		t.Run(how, func(t *testing.T) {
			w := newWhole(t)
			v.spoil(mount(t, filepath.Join(w.dir, "run")))
			w.run()
			w.waitOffered()
			w.admitPod("p1", diskResource)
			if err := w.end(); err != nil {
				t.Error(err)
			}
			const said = `level=ERROR msg="control socket not served"`
			if log := w.journal.String(); strings.Contains(log, said) != (how == "read-only") { // a socket needs no space
				t.Errorf("the log has %q, or not:\n%s", said, log)
			}
		})
	}
}

// TestUnwritableSpecs checks that without specs, devices with inject = "cdi" are not offered, and all others are.
// When there is space again, the specs are written.
func TestUnwritableSpecs(t *testing.T) {
	needRoot(t)
	noLeaks(t)
	for how, v := range spoils {
		t.Run(how, func(t *testing.T) {
			w := newWhole(t)
			specs := mount(t, filepath.Join(w.dir, "cdi"))
			v.spoil(specs)
			w.run()
			w.waitOffered()
			admit := func() error {
				_, answer, err := w.kubelet.allocate(t.Context(), "p2", widgetResource, 1, func([]string) {})
				if err == nil && len(answer.GetCdiDevices()) != 1 {
					return fmt.Errorf("%w: the answer is %v", errNever, answer)
				}
				return err
			}
			if err := admit(); err == nil || errors.Is(err, errNever) {
				t.Errorf("a pod gets a name that nobody can resolve: %v", err)
			}
			w.waitReported("CDI spec of " + widgetResource + " not written")
			w.admitPod("p1", diskResource)
			w.remember(&pod{uid: "p2"})
			v.mend(specs)
			if err := eventually(admit); err != nil {
				t.Error(err)
			}
			w.waitReported("")
			if err := w.end(); err != nil {
				t.Error(err)
			}
		})
	}
}
