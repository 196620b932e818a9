// SPDX-License-Identifier: Apache-2.0

package unitfile

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestComplaints(t *testing.T) {
	etc, lib := t.TempDir(), t.TempDir()
	write := func(dir, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(etc, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"plain@.service", "masked@.service", "empty@.service", "dangling@.service"} {
		write(lib, name, "[Service]\n")
	}
	link(os.DevNull, "masked@.service")
	write(etc, "empty@.service", "")
	link("elsewhere", "dangling@.service") // systemd ignores it
	link(filepath.Join(lib, "plain@.service"), "alias@.service")
	got := complaints([]string{filepath.Join(etc, "absent"), etc, lib}, []string{
		"plain@.service", "masked@.service", "empty@.service", "dangling@.service", "alias@.service", "missing@.service",
	})
	want := []string{
		"the unit masked@.service is masked on this machine", "the unit empty@.service is masked on this machine", "the unit missing@.service is missing on this machine",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
