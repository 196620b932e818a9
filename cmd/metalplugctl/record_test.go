// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/udev/recording"
)

// TestRecordedMachineOffersTheSame checks that preview shows the same for a node and for a recording of it. If the serial
// numbers are masked, the number of devices is the same.
func TestRecordedMachineOffersTheSame(t *testing.T) {
	for _, b := range recording.Bundled() {
		t.Run(b.Name, func(t *testing.T) {
			parsed, err := recording.Parse(b.Text)
			if err != nil {
				t.Fatal(err)
			}
			root := t.TempDir()
			if err := parsed.Write(root); err != nil {
				t.Fatal(err)
			}
			c := config.Default()
			c.Paths.Sysfs, c.Paths.Dev, c.Paths.Proc = filepath.Join(root, "sys"), filepath.Join(root, "dev"), filepath.Join(root, "proc")
			want := runPreview(t, string(b.Text))
			for _, serials := range []bool{true, false} {
				r := &recording.Recorder{Tree: sysfsOf(c), Serials: serials}
				got := runPreview(t, record(r, c, parsed.Devices()))
				if serials && !reflect.DeepEqual(got, want) {
					t.Errorf("recorded %+v\nwant %+v", got, want)
				}
				if !reflect.DeepEqual(got.Resources, want.Resources) || len(got.Devices) != len(want.Devices) {
					t.Errorf("masked: %+v\nwant %+v", got, want)
				}
			}
		})
	}
}

// runPreview returns the output of preview for a recording.
func runPreview(t *testing.T, text string) previewState {
	t.Helper()
	file := filepath.Join(t.TempDir(), "recording")
	if err := place(file, text); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := ctl(t, "preview", "--recording", file, "-o", "json")
	var s previewState
	if err := json.Unmarshal([]byte(stdout), &s); code != exitOK || err != nil {
		t.Fatalf("exit %d, %v: %s", code, err, stderr)
	}
	s.Machine = ""
	for i := range s.Devices {
		s.Devices[i].Since, s.Devices[i].Serial = time.Time{}, ""
	}
	return s
}

// TestRecordThisMachine records the machine on which the tests run.
func TestRecordThisMachine(t *testing.T) {
	code, stdout, stderr := ctl(t, "record", "--config", "/dev/null")
	if code != exitOK || !strings.HasPrefix(stdout, "# Recorded by metalplugctl unreleased. Serial numbers were replaced.\n") {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	if _, err := recording.Parse([]byte(stdout)); err != nil {
		t.Error(err)
	}
	code, answer, stderr := ctl(t, "record", "--config", "/dev/null", "-o", "json")
	var got struct{ Recording string }
	if err := json.Unmarshal([]byte(answer), &got); code != exitOK || err != nil {
		t.Fatalf("exit %d: %v, %s", code, err, stderr)
	}
	if _, err := recording.Parse([]byte(got.Recording)); err != nil || !strings.HasPrefix(got.Recording, "# Recorded by metalplugctl") {
		t.Errorf("%v in %.100s", err, got.Recording)
	}
}
