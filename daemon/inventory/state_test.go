// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/statefile"
	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/integration/udevtest"
)

// logs makes the inventory and its store write their log to a text.
func logs(log *strings.Builder, state string) func(*inventory.Options) {
	return func(o *inventory.Options) {
		o.Log = slog.New(slog.NewTextHandler(log, nil))
		o.Store = statefile.Open(state, o.Log)
		o.Machine = "here"
	}
}

// end stops the inventory.
func (r *running) end() {
	r.stop()
	r.stop = func() {}
}

// block puts a directory in the place of the state file, so that writes fail until unblock is called. Both functions are
// atomic, because the store may be saving at that moment.
func block(t *testing.T, state string) (unblock func()) {
	t.Helper()
	elsewhere, inTheWay := filepath.Join(t.TempDir(), "elsewhere"), filepath.Join(state, "state.json.new")
	err := os.MkdirAll(filepath.Join(elsewhere, "full"), 0o700)
	for err == nil {
		if err = os.Rename(elsewhere, inTheWay); err == nil {
			break
		}
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EEXIST) {
			err = nil // the store is writing the file
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.Rename(inTheWay, elsewhere); err != nil {
			t.Fatal(err)
		}
	}
}

var mayHaveBeen = standing{cordoned: true, reason: "cordoned: metalplugd lost its state, and the device may have been cordoned; if it was not cordoned, uncordon the device"}

// TestStateLost expects one log line with the loss and the remedy. All devices that are found at that start must be cordoned
// until an operator uncordons them. Devices that are found later, or after the next start, must not be cordoned. An
// unreadable file must be renamed once.
func TestStateLost(t *testing.T) {
	rewrite := func(text string) func(string) error {
		return func(file string) error { return os.WriteFile(file, []byte(text), 0o600) }
	}
	instead := func(put func(file string) error) func(string) error {
		return func(file string) error { return errors.Join(os.Remove(file), put(file)) }
	}
	for name, c := range map[string]struct {
		spoil func(file string) error
		why   string
	}{
		"cut":             {func(file string) error { return os.Truncate(file, 20) }, "unexpected end of JSON input"},
		"empty":           {func(file string) error { return os.Truncate(file, 0) }, "unexpected end of JSON input"},
		"null":            {rewrite("null"), "version is 0, not 2"},
		"a later version": {rewrite(`{"version":3,"devices":[]}`), "version is 3, not 2"},
		"an empty cordon": {rewrite(`{"version":2,"machine":"here","cordons":{"node-A-w":null}}`), "a cordon is empty"},
		"too large":       {func(file string) error { return os.Truncate(file, 100<<20) }, "the file is larger than 67108864 bytes"},
		"a directory": {
			instead(func(file string) error { return os.MkdirAll(filepath.Join(file, "full"), 0o700) }), "the file is a directory",
		},
		"a pipe": {instead(func(file string) error { return unix.Mkfifo(file, 0o600) }), "the file is not a regular file"},
		"a link": {instead(func(file string) error { return os.Symlink("audit.jsonl", file) }), "the file is a symbolic link"},
		"of another machine": {func(file string) error {
			text, err := os.ReadFile(file)
			return errors.Join(err, os.WriteFile(file, bytes.Replace(text, []byte(`"machine":"here"`), []byte(`"machine":"there"`), 1), 0o600))
		}, "the file was written on another machine"},
		"gone": {os.Remove, "state.json was removed, but audit.jsonl still exists"},
	} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			file := filepath.Join(state, "state.json")
			m := udevtest.New(t, widget("w0", "A"))
			var log strings.Builder
			r := start(t, m, "", logs(&log, state))
			if err := r.Cordon(t.Context(), cordonedWidget, api.Cordon{Reason: "loose"}); err != nil {
				t.Fatal(err)
			}
			r.end()
			if err := errors.Join(os.WriteFile(filepath.Join(state, "audit.jsonl"), nil, 0o600), c.spoil(file)); err != nil {
				t.Fatal(err)
			}
			spoilt, _ := os.Lstat(file)
			r = start(t, m, "", logs(&log, state))
			if got := r.standing(cordonedWidget); got != mayHaveBeen {
				t.Errorf("%+v, want %+v", got, mayHaveBeen)
			}
			m.Plug(widget("w1", "B"))
			r.waitSnapshot("B", func(s *inventory.Snapshot) bool { return s.Find("node-B-w") != nil })
			if !r.standing("node-B-w").healthy {
				t.Error("a device that was not there is cordoned")
			}
			r.end()
			if text := log.String(); strings.Count(text, `level=ERROR msg="state lost" err="`) != 1 || !strings.Contains(text, c.why) ||
				strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, "uncordon those that were not cordoned before") {
				t.Errorf("want %q in\n%s", c.why, text)
			}
			if aside, err := os.Lstat(file + ".damaged"); spoilt != nil && (err != nil || !os.SameFile(aside, spoilt)) {
				t.Errorf("it was not moved aside: %v", err)
			}
			log.Reset()
			r = start(t, m, "", logs(&log, state))
			if got := r.standing(cordonedWidget); got != mayHaveBeen {
				t.Errorf("after a restart: %+v, want %+v", got, mayHaveBeen)
			}
			if was, err := r.Uncordon(t.Context(), cordonedWidget); !was || err != nil {
				t.Errorf("%v, %v", was, err)
			}
			r.end()
			r = start(t, m, "", logs(&log, state))
			if got, want := r.standing(cordonedWidget), (standing{healthy: true}); got != want {
				t.Errorf("uncordoned: %+v, want %+v", got, want)
			}
			if strings.Contains(log.String(), "state lost") {
				t.Errorf("lost once more:\n%s", log.String())
			}
		})
	}
}

// TestStateLostTwice ends the daemon before it has found a device. The next start must also know that the state is lost.
func TestStateLostTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := t.TempDir()
		if err := os.WriteFile(filepath.Join(state, "state.json"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		m := udevtest.New(t, widget("w0", "A")+blank(0, "S0", ""))
		m.Break(errors.New("no udev"))
		begin(t, m, state).end()
		m.Break(nil)
		r := start(t, m, state, func(o *inventory.Options) {
			o.Rules = slices.DeleteFunc(slices.Clone(rules), func(rule device.Rule) bool { return rule.Class.Name == "nvme" })
		})
		if got := r.standing(cordonedWidget); got != mayHaveBeen {
			t.Errorf("%+v, want %+v", got, mayHaveBeen)
		}
		if !r.standing("nvme-eui.S0").cordoned {
			t.Error("a disk that no resource matches, and that may have been cordoned, is not cordoned")
		}
	})
}

// TestFirstStart checks that a missing state file does not count as lost at the first start, even if its directory has files
// of other programs.
func TestFirstStart(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	m := udevtest.New(t, widget("w0", "A"))
	for _, name := range []string{"", "lost+found"} {
		if name != "" {
			if err := errors.Join(os.RemoveAll(state), os.Mkdir(state, 0o700), os.WriteFile(filepath.Join(state, name), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		var log strings.Builder
		r := start(t, m, "", logs(&log, state))
		if got := r.standing(cordonedWidget); !got.healthy || strings.Contains(log.String(), "level=ERROR") {
			t.Errorf("with %q: %+v\n%s", name, got, log.String())
		}
		r.end()
	}
}

// TestStateIsNotADirectory expects one log line with the remedy. The devices must still be offered.
func TestStateIsNotADirectory(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(state, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	r := start(t, udevtest.New(t, widget("w0", "A")), "", logs(&log, state))
	if !r.standing(cordonedWidget).healthy {
		t.Errorf("%+v", r.standing(cordonedWidget))
	}
	r.end()
	const want = `state.json.new: not a directory: make paths.state a directory and restart metalplugd"`
	if text := log.String(); strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, `msg="state not saved" err="`) || !strings.Contains(text, want) {
		t.Errorf("%q is not once in\n%s", want, text)
	}
}

// TestFullDiskKeepsFiles fills the disk with the state file. Contents that the file already has count as saved. Other
// contents are saved only when there is space again.
func TestFullDiskKeepsFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := t.TempDir()
		m := udevtest.New(t, widget("w0", "A"))
		r := start(t, m, state)
		clock.Pass(time.Second)
		r.end()
		r = start(t, m, state)
		unblock := block(t, state)
		clock.Pass(time.Second)
		if err := errors.Join(r.WaitSaved(t.Context()), r.Store.WriteError()); err != nil {
			t.Errorf("nothing has changed: %v", err)
		}
		m.Plug(widget("w1", "B"))
		clock.Pass(time.Second)
		if err := r.Store.WriteError(); err == nil || r.WaitSaved(t.Context()) == nil {
			t.Errorf("a device came, and is not saved: %v", err)
		}
		unblock()
		clock.Pass(time.Minute)
		if err := r.Store.WriteError(); err != nil {
			t.Error(err)
		}
		if text, err := os.ReadFile(filepath.Join(state, "state.json")); err != nil || !strings.Contains(string(text), "node-B-w") {
			t.Errorf("%s, %v", text, err)
		}
	})
}

// TestUncordonNotSaved checks that a device stays cordoned if its uncordon cannot be saved, even after a restart.
func TestUncordonNotSaved(t *testing.T) {
	state := t.TempDir()
	m := udevtest.New(t, widget("w0", "A"))
	r := start(t, m, state)
	if err := r.Cordon(t.Context(), cordonedWidget, api.Cordon{Reason: "loose"}); err != nil {
		t.Fatal(err)
	}
	unblock := block(t, state)
	want := standing{cordoned: true, reason: "cordoned: loose"}
	if _, err := r.Uncordon(t.Context(), cordonedWidget); err == nil || r.standing(cordonedWidget) != want {
		t.Errorf("%v, %+v", err, r.standing(cordonedWidget))
	}
	unblock()
	r.end()
	r = start(t, m, state)
	if got := r.standing(cordonedWidget); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
