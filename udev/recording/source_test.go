// SPDX-License-Identifier: Apache-2.0

package recording_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/udev"
	"github.com/metalplug/metalplug/udev/recording"
)

// The daemon can use a Source instead of the machine's udev.
var _ udev.Source = (*recording.Source)(nil)

// opened is a source with a running Listen.
type opened struct {
	*recording.Source
	file    string
	events  chan udev.Event
	warned  chan error
	passing string // part of the warning of a source that reads a half-written file, or empty
}

// openSource opens a source, replaces the text of its file with the texts in saved, and then listens.
func openSource(t *testing.T, text string, saved ...string) *opened {
	t.Helper()
	o := &opened{
		file:   filepath.Join(t.TempDir(), "machine"),
		events: make(chan udev.Event), warned: make(chan error, 16),
	}
	o.save(t, text)
	var err error
	if o.Source, err = recording.Open(o.file); err != nil {
		t.Fatal(err)
	}
	o.Warn, o.passing = func(err error) { o.warned <- err }, ""
	for _, text := range saved {
		o.save(t, text)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- o.Listen(ctx, o.events) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Listen: %v", err)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(o.Root()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the tree after Close: %v", err)
		}
	})
	return o
}

// save truncates and writes the file, as some editors do.
func (o *opened) save(t *testing.T, text string) {
	t.Helper()
	o.passing = "the file is empty"
	if err := os.WriteFile(o.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// replace writes a new file and renames it, as other editors do.
func (o *opened) replace(t *testing.T, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(o.file+"~", []byte(text), 0o600), os.Rename(o.file+"~", o.file)); err != nil {
		t.Fatal(err)
	}
}

func (o *opened) expect(t *testing.T, want ...string) {
	t.Helper()
	var got []udev.Event
	for len(got) < len(want) {
		select {
		case event := <-o.events:
			got = append(got, event)
		case err := <-o.warned:
			o.checkTemporary(t, err)
		case <-time.After(10 * time.Second):
			t.Fatalf("events %q, want %q", brief(got), want)
		}
	}
	if !slices.Equal(brief(got), want) {
		t.Fatalf("events %q, want %q", brief(got), want)
	}
	for len(o.warned) > 0 { // warnings precede the events
		o.checkTemporary(t, <-o.warned)
	}
	o.passing = ""
}

// checkTemporary checks that a warning is a temporary one.
func (o *opened) checkTemporary(t *testing.T, err error) {
	t.Helper()
	if o.passing == "" || !strings.Contains(err.Error(), o.passing) {
		t.Fatalf("warned of %v", err)
	}
}

func TestSourceFollowsTheFile(t *testing.T) {
	o := openSource(t, disk)
	const node = "/sys/devices/pci0000:00/0000:00:02.0/nvme/nvme0/nvme0n1"
	o.save(t, disk+partition)
	o.expect(t, "add nvme0n1", "add nvme0n1p1")
	if _, err := os.Stat(o.Root() + node); err != nil {
		t.Errorf("after add: %v", err)
	}
	if devices, err := o.Enumerate(); err != nil || len(devices) != 4 {
		t.Errorf("%d devices, error %v", len(devices), err)
	}
	o.replace(t, disk)
	o.expect(t, "remove nvme0n1p1", "remove nvme0n1")
	if _, err := os.Stat(o.Root() + node); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after remove: %v", err)
	}
	o.save(t, "# nothing is left\n")
	o.expect(t, "remove nvme0", "remove 0000:00:02.0", "mounts", "overflow")
}

func TestSourceSurvivesABrokenFile(t *testing.T) {
	o := openSource(t, disk)
	for text, want := range map[string]string{
		disk + "rubbish\n": "line 28: expected a letter",
		"":                 "the file is empty",
	} {
		o.replace(t, text)
		select {
		case err := <-o.warned:
			if !strings.Contains(err.Error(), want) {
				t.Errorf("warned of %v, want %s", err, want)
			}
		case event := <-o.events:
			t.Fatalf("event %+v of a broken file", event)
		case <-time.After(10 * time.Second):
			t.Fatalf("no warning of %q", text)
		}
		if devices, err := o.Enumerate(); err != nil || len(devices) != 2 {
			t.Errorf("%d devices, error %v", len(devices), err)
		}
	}
	if err := os.Remove(o.file); err != nil {
		t.Fatal(err)
	}
	o.replace(t, disk+partition)
	o.expect(t, "add nvme0n1", "add nvme0n1p1")
}

// TestSourceSeesASaveBeforeListen checks that the source notices changes from the moment it is opened.
func TestSourceSeesASaveBeforeListen(t *testing.T) {
	o := openSource(t, "", disk)
	o.expect(t, "add 0000:00:02.0", "add nvme0", "mounts", "overflow")
}

func TestOpenErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "machine")
	if _, err := recording.Open(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := os.WriteFile(file, []byte("rubbish\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := recording.Open(file); err == nil || !strings.Contains(err.Error(), "line 1: expected") {
		t.Errorf("a broken file: %v", err)
	}
}
