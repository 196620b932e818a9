// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// watched has the directories that a test has watched. made is created just before its parent directory is watched, so
// there is no event for it.
type watched struct {
	dirs []string
	made []string
}

func (w *watched) add(dir string) error {
	if len(w.made) > 0 && filepath.Dir(w.made[0]) == dir {
		if err := os.Mkdir(w.made[0], 0o700); err != nil {
			return err
		}
		w.made = w.made[1:]
	}
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	w.dirs = append(w.dirs, dir)
	return nil
}

func TestRearmMissesNoDirectory(t *testing.T) {
	for _, test := range []struct {
		name string
		made []string
		want []string
	}{
		{"none is made", nil, []string{"."}},
		{"the upper one is made meanwhile", []string{"up"}, []string{".", "up"}},
		{"both are made meanwhile", []string{"up", "up/dir"}, []string{".", "up", "up/dir"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			base := t.TempDir()
			w := &watched{}
			for _, name := range test.made {
				w.made = append(w.made, filepath.Join(base, name))
			}
			if err := rearm(filepath.Join(base, "up/dir"), w.add); err != nil {
				t.Fatal(err)
			}
			for _, name := range test.want {
				if !slices.Contains(w.dirs, filepath.Join(base, name)) {
					t.Errorf("%s is not watched, only %v", name, w.dirs)
				}
			}
		})
	}
}

func TestRearmLogsOnce(t *testing.T) {
	dir, full := t.TempDir(), errors.New("no space left")
	err := rearm(dir, func(d string) error {
		if d == dir {
			return full
		}
		return nil
	})
	if !errors.Is(err, full) {
		t.Errorf("error %v, want %v", err, full)
	}
}
