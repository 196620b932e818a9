// SPDX-License-Identifier: Apache-2.0

package udevtest

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/metalplug/metalplug/udev"
)

const (
	parent = "P: /devices/a\nE: SUBSYSTEM=x\n"
	child  = "P: /devices/a/b\nE: SUBSYSTEM=x\nA: state=live\n"
)

var _ udev.Source = (*Machine)(nil)

func present(m *Machine, name string) bool {
	_, err := os.Stat(path.Join(m.Root(), name))
	return err == nil
}

func TestMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(t, parent)
		events := make(chan udev.Event, 16)
		done := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- m.Listen(ctx, events) }()
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for len(events) > 0 {
				event := <-events
				got = append(got, event.Action+event.Device.SysPath)
			}
			if !slices.Equal(got, want) {
				t.Errorf("events %q, want %q", got, want)
			}
		}
		expect()
		m.Plug(child)
		expect("add/sys/devices/a/b")
		m.SetAttr("/sys/devices/a/b", "state", "dead")
		expect("change/sys/devices/a/b")
		m.SetAttr("/sys/devices/a/b", "state", "dead")
		expect()
		m.Unplug("/sys/devices/a/b")
		expect("remove/sys/devices/a/b")
		m.Silently(parent + "\n" + child)
		expect()
		if !present(m, "sys/devices/a/b/state") {
			t.Error("the tree did not change silently")
		}
		m.Send(udev.Event{Action: udev.Overflow})
		m.Apply("")
		expect("overflow", "remove/sys/devices/a/b", "remove/sys/devices/a")
		if present(m, "sys/devices/a") {
			t.Error("a device is left")
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Listen: %v", err)
		}
	})
}

func TestMachineAnswers(t *testing.T) {
	m := New(t, parent)
	if devices, err := m.Enumerate(); err != nil || len(devices) != 1 {
		t.Errorf("%d devices, error %v", len(devices), err)
	}
	broken := errors.New("broken")
	m.Break(broken)
	if _, err := m.Enumerate(); !errors.Is(err, broken) {
		t.Errorf("a broken machine enumerates: %v", err)
	}
}
