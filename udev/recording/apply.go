// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// apply turns the tree below root from one state into another. What stays the same is not touched, and a file that
// changes is replaced at one stroke: no reader ever finds half of it, or nothing.
func apply(root string, from, to *tree) error {
	if err := removeEntries(root, from, to); err != nil {
		return err
	}
	for _, dir := range slices.Sorted(maps.Keys(to.dirs)) {
		if _, ok := from.dirs[dir]; ok {
			continue
		}
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	// Beside sys and dev, where nobody lists it, and on the same file system, so that renaming is possible.
	spare := filepath.Join(root, ".spare")
	for name, e := range to.entries {
		if before, ok := from.entries[name]; ok && before == e {
			continue
		}
		var err error
		if at := filepath.Join(root, name); len(from.dirs) > 0 {
			err = e.replace(at, spare)
		} else {
			err = e.write(at) // nobody reads a new tree yet
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeEntries removes what the new state does not have: files, then directories, those below before those above, with
// whatever else was put into them.
func removeEntries(root string, from, to *tree) error {
	for name := range from.entries {
		if _, ok := to.entries[name]; ok {
			continue
		}
		if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
			return err
		}
	}
	dirs := slices.Sorted(maps.Keys(from.dirs))
	for _, dir := range slices.Backward(dirs) {
		if _, ok := to.dirs[dir]; ok || isTop(dir) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	return nil
}

// isTop tells whether a directory is there even when it is empty.
func isTop(dir string) bool { return dir == "sys" || dir == "dev" || dir == "proc" }

// replace makes the file or link at spare and moves it to name.
func (e entry) replace(name, spare string) error {
	err := e.write(spare)
	if err == nil {
		err = os.Rename(spare, name)
	}
	if err != nil {
		_ = os.Remove(spare) // else the next one could not be made
	}
	return err
}

func (e entry) write(name string) error {
	if e.link {
		return os.Symlink(e.text, name)
	}
	return os.WriteFile(name, []byte(e.text), 0o644)
}
