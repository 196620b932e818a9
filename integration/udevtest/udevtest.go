// SPDX-License-Identifier: Apache-2.0

// Package udevtest simulates a machine whose hardware a test can change. The machine has the tree of a recording, and a
// [udev.Source] with simulated events.
package udevtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/metalplug/metalplug/udev"
	"github.com/metalplug/metalplug/udev/recording"
)

// Machine is hardware for a test. All methods may be called concurrently. If a method cannot change the hardware, it ends
// the test, so such methods must be called from the test's goroutine.
//
// Events wait in an unlimited queue until Listen takes them. No method waits for a listener.
type Machine struct {
	t    testing.TB
	root string
	more chan struct{} // holds one value if the queue may have an event

	mu        sync.Mutex
	text      string
	recording *recording.Recording
	queue     []udev.Event
	broken    error
}

// New makes a machine from the text of a recording, in a directory that is removed with the test. An empty text is a
// machine without devices.
func New(t testing.TB, text string) *Machine {
	t.Helper()
	m := &Machine{t: t, root: directory(t), more: make(chan struct{}, 1)}
	m.text, m.recording = text, m.parse(text)
	if err := m.recording.Write(m.root); err != nil {
		t.Fatalf("write recording: %v", err)
	}
	boot := filepath.Join(m.root, "proc/sys/kernel/random/boot_id")
	if _, err := os.Stat(boot); errors.Is(err, fs.ErrNotExist) { // each kernel has one
		if err := errors.Join(os.MkdirAll(filepath.Dir(boot), 0o755), os.WriteFile(boot, []byte("0\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// memory is the directory of POSIX shared memory, which is a tmpfs (shm_overview(7)).
const memory = "/dev/shm"

// directory creates a directory, in memory if possible. Like sysfs, and unlike a disk, a tmpfs does not soon reuse the inode
// number of a removed directory (shmem_get_inode, mm/shmem.c).
func directory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(memory, "udevtest-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return dir
}

// Root returns the directory that contains sys, dev and proc.
func (m *Machine) Root() string { return m.root }

// Apply replaces the hardware with the hardware of another recording, and sends the events of the differences.
func (m *Machine) Apply(text string) {
	m.t.Helper()
	m.change(text, true)
}

// Silently is like Apply, but without events.
func (m *Machine) Silently(text string) {
	m.t.Helper()
	m.change(text, false)
}

// Plug adds the devices and files of a recording and sends events.
func (m *Machine) Plug(text string) {
	m.t.Helper()
	all := blocks(m.present())
	maps.Copy(all, blocks(text))
	m.change(joined(all), true)
}

// Unplug removes the device at a sysfs path with all devices below it, and sends their events.
func (m *Machine) Unplug(sysPath string) {
	m.t.Helper()
	all := blocks(m.present())
	maps.DeleteFunc(all, func(head, _ string) bool {
		return strings.HasPrefix(head+"/", "P: "+strings.TrimPrefix(sysPath, "/sys")+"/")
	})
	m.change(joined(all), true)
}

// SetAttr writes an attribute at a sysfs path, and sends a change event if the path belongs to a device.
func (m *Machine) SetAttr(sysPath, name, value string) {
	m.t.Helper()
	all, head := blocks(m.present()), "P: "+strings.TrimPrefix(sysPath, "/sys")
	block, ok := all[head]
	if !ok {
		m.t.Fatalf("set %s/%s: no such device in the recording", sysPath, name)
	}
	var changed strings.Builder
	for line := range strings.Lines(block) {
		if len(line) < 3 || !strings.Contains("AHL", line[:1]) || !strings.HasPrefix(line[3:], name+"=") {
			changed.WriteString(line)
		}
	}
	fmt.Fprintf(&changed, "H: %s=%x\n", name, value)
	all[head] = changed.String()
	m.change(joined(all), true)
}

// blocks splits the text of a recording. The keys are the first lines of the blocks of devices, and the names of other
// files.
func blocks(text string) map[string]string {
	all, head := make(map[string]string), ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line) + "\n"
		switch {
		case line == "\n", line[0] == '#':
		case strings.HasPrefix(line, "F:"):
			name, _, _ := strings.Cut(line, "=")
			all[strings.TrimSpace(name)] = line
		case strings.HasPrefix(line, "P:"):
			head = strings.TrimSpace(line)
			all[head] = line
		default:
			all[head] += line
		}
	}
	return all
}

// joined assembles the text of a recording from its parts.
func joined(all map[string]string) string {
	return strings.Join(slices.Collect(maps.Values(all)), "\n")
}

// Send sends an event without changing the hardware. An event without a time gets the current time.
func (m *Machine) Send(event udev.Event) {
	if event.Received.IsZero() {
		event.Received = time.Now()
	}
	m.mu.Lock()
	m.queue = append(m.queue, event)
	m.mu.Unlock()
	m.wake()
}

// Break makes Enumerate fail until Break is called with nil.
func (m *Machine) Break(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = err
}

// Enumerate returns the current devices.
func (m *Machine) Enumerate() ([]udev.Device, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return nil, m.broken
	}
	return m.recording.Devices(), nil
}

// Listen sends the events of the queue.
func (m *Machine) Listen(ctx context.Context, events chan<- udev.Event) error {
	for {
		event, ok := m.next()
		if !ok {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-m.more:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case events <- event:
		}
	}
}

func (m *Machine) next() (udev.Event, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue) == 0 {
		return udev.Event{}, false
	}
	event := m.queue[0]
	m.queue = m.queue[1:]
	return event, true
}

func (m *Machine) wake() {
	select {
	case m.more <- struct{}{}:
	default:
	}
}

func (m *Machine) parse(text string) *recording.Recording {
	m.t.Helper()
	r, err := recording.Parse([]byte(text))
	if err != nil {
		m.t.Fatalf("parse recording: %v", err)
	}
	return r
}

func (m *Machine) present() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text
}

func (m *Machine) change(text string, send bool) {
	m.t.Helper()
	to := m.parse(text)
	m.mu.Lock()
	defer m.mu.Unlock()
	events, err := m.recording.Update(m.root, to)
	if err != nil {
		m.t.Fatalf("update recording: %v", err)
	}
	m.text, m.recording = text, to
	if send {
		m.queue = append(m.queue, events...)
		m.wake()
	}
}
