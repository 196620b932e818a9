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
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// newNode returns a node with a disk and a widget, and with modified helpers.
func newNode(t *testing.T, change func(*setup)) *sequence {
	t.Helper()
	s := &sequence{t: t, slow: map[string]bool{}, hardware: &hardware{widgets: map[string]string{"widget0": "W0"}}}
	s.disks = []*disk{{serial: fmt.Sprintf("%032x", 1), slot: 1, sequence: 1}}
	s.sequence = 1
	dir := shortDir(t)
	s.machine = newMachine(t, s.hardware)
	s.setup = setup{
		source: s.machine, root: s.machine.Root(), touch: *s.touch(), dir: filepath.Join(dir, "k"), state: filepath.Join(dir, "s"),
		shares: 1, care: resourceConfig("nvme-controller", "discard", config.WhenBoth, time.Second),
		log: slog.New(slog.NewTextHandler(&s.journal, &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
	s.must(os.Mkdir(s.setup.dir, 0o755))
	if change != nil {
		change(&s.setup)
	}
	s.daemonStart()
	s.kubeletStart()
	t.Cleanup(func() {
		s.daemonStop()
		s.kubeletStop()
		if t.Failed() {
			t.Logf("log:\n%s", s.journal.String())
		}
	})
	s.waitShown(widgetResource, "node-W0-widget", pluginapi.Healthy)
	return s
}

// waitShown waits until the kubelet shows a device with the given health, or does not show the device for "".
func (s *sequence) waitShown(resource, id, health string) {
	s.t.Helper()
	if err := eventually(func() error {
		list := s.kubelet.view(resource)
		if got := list[id]; list == nil || got != health {
			return fmt.Errorf("%s is %q, not %q", id, got, health)
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
}

// sendChange sends a udev event that reports a change of a disk.
func (s *sequence) sendChange(d *disk) {
	s.t.Helper()
	devices, err := s.machine.Enumerate()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, u := range devices {
		if u.SysPath == "/sys"+d.sysPath() {
			s.machine.Send(udev.Event{Action: "change", Device: u})
		}
	}
}

// admitPod admits a pod with a device of a resource.
func (s *sequence) admitPod(uid, resource string) []string {
	s.t.Helper()
	p := &pod{uid: uid, resource: resource}
	s.remember(p)
	ids, _, err := s.kubelet.allocate(s.t.Context(), uid, resource, 1, func([]string) {})
	if err != nil {
		s.t.Fatal(err)
	}
	p.ids = ids
	return ids
}

// broken lists the ways in which a helper fails. It does not start, does not answer, or gives an invalid answer.
var broken = map[string]func(ctx context.Context) error{
	"missing": func(context.Context) error { return errors.New("connect to /run/x: no such file or directory") },
	"hanging": func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	},
	"nonsense": func(context.Context) error { return errors.New("parse the answer: it is not one") },
}

// TestBrokenHelper breaks each helper in each way. No container may start with a disk that was not cleared, or whose
// users are unknown. Everything else must continue. When the helper works again, everything must recover.
func TestBrokenHelper(t *testing.T) {
	noLeaks(t)
	for how, fail := range broken {
		for _, which := range []string{"holders", "survey", "prepare", "probe"} {
			t.Run(which+" "+how, func(t *testing.T) {
				t.Parallel() // some of the subtests wait
				mended, mend := context.WithCancel(context.Background())
				defer mend()
				s := newNode(t, func(s *setup) { s.touch = failingHelpers(s.touch, which, mended, fail) })
				s.checkBroken(which, mend)
			})
		}
	}
}

// failingHelpers returns helpers of which one function fails until it is repaired.
func failingHelpers(h device.Touch, which string, mended context.Context, fail func(context.Context) error) device.Touch {
	broken := func(ctx context.Context, name string) error {
		if name != which || mended.Err() != nil {
			return nil
		}
		return fail(ctx)
	}
	return device.Touch{
		Probe: func(ctx context.Context, t device.Target, held bool) (device.Report, error) {
			limited, cancel := context.WithTimeout(ctx, 2*time.Second) // the disk is inspected repeatedly
			defer cancel()
			if err := broken(limited, "probe"); err != nil {
				return device.Report{}, err
			}
			return h.Probe(ctx, t, held)
		},
		Survey: func(ctx context.Context, t device.Target, from int64) (device.Report, error) {
			limited, cancel := context.WithTimeout(ctx, 2*time.Second) // the disk is read repeatedly
			defer cancel()
			if err := broken(limited, "survey"); err != nil {
				return device.Report{}, err
			}
			return h.Survey(ctx, t, from)
		},
		Prepare: func(ctx context.Context, t device.Target, w device.Work) (device.Report, error) {
			if err := broken(ctx, "prepare"); err != nil {
				return device.Report{}, err
			}
			return h.Prepare(ctx, t, w)
		},
		Holders: func(ctx context.Context, nodes []string) ([]device.Holder, error) {
			limited, cancel := context.WithTimeout(ctx, 2*time.Second) // metalplugd waits at most 20 s for metalplug-holders
			defer cancel()
			if err := broken(limited, "holders"); err != nil {
				return nil, err
			}
			return h.Holders(ctx, nodes)
		},
	}
}

// checkBroken checks the effects that a broken helper must have, and those that it must not have.
func (s *sequence) checkBroken(which string, mend func()) {
	s.t.Helper()
	id := s.disks[0].id()
	var ids []string
	if which != "prepare" { // the content or the users of the disk are unknown, so no pod gets it
		s.waitShown(diskResource, id, "")
	} else {
		s.waitShown(diskResource, id, pluginapi.Healthy)
		ids = s.admitPod("p1", diskResource)
		failed := make(chan error, 1)
		go func() { failed <- s.kubelet.start(s.t.Context(), diskResource, ids) }()
		s.goesOn(which)
		if err := <-failed; err == nil {
			s.t.Errorf("a container starts though the helper for %s is broken", which)
		}
	}
	s.goesOn(which)
	mend()
	s.sendChange(s.disks[0]) // without this event, metalplugd inspects the disk later
	if ids == nil {
		s.waitShown(diskResource, id, pluginapi.Healthy)
		ids = s.admitPod("p1", diskResource)
	}
	if err := eventually(func() error { return s.kubelet.start(s.t.Context(), diskResource, ids) }); err != nil {
		s.t.Error(err)
	}
	s.waitShown(diskResource, id, pluginapi.Healthy)
	if err := errors.Join(s.kubelet.failure(), s.failure()); err != nil {
		s.t.Error(err)
	}
}

// goesOn checks that widgets can be added, removed and given to pods. Their containers must start too. But if the users
// of a widget are unknown, no container may start.
func (s *sequence) goesOn(broken string) {
	s.t.Helper()
	s.count++
	name, serial := fmt.Sprintf("widget%d", s.count), fmt.Sprintf("W%d", s.count)
	s.widgets[name] = serial
	s.machine.Apply(s.text())
	s.waitShown(widgetResource, "node-"+serial+"-widget", pluginapi.Healthy)
	ids := s.admitPod("pw"+serial, widgetResource)
	if err := s.kubelet.start(s.t.Context(), widgetResource, ids); (err != nil) != (broken == "holders") {
		s.t.Errorf("start with %s while %s is broken: %v", strings.Join(ids, ", "), broken, err)
	}
}
