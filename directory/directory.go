// SPDX-License-Identifier: Apache-2.0

// Package directory watches a directory with inotify. The directory may be missing, and it may be removed and recreated.
package directory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// Event reports a change to a watched directory, or to a file in it. [Name] returns the path that has changed. An event is only a
// hint, so the receiver must check the file itself.
type Event = fsnotify.Event

// Watch sends an event on the channel Events for each change to a directory. An error on the channel Errors means that events may
// have been lost. The owner must close a Watch.
type Watch struct {
	*fsnotify.Watcher
	dir string
}

// Open returns a Watch that watches nothing until [Watch.Rearm] is called.
func Open(dir string) (*Watch, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	return &Watch{w, dir}, nil
}

// Rearm watches the directory if it exists now. Otherwise, Rearm watches the nearest existing parent, to notice when the
// directory is created. There are no events for changes or mounts above that parent, so a caller that needs them must check the
// path from time to time. The caller must call Rearm if [Watch.Itself] returns true for an event, and after events were lost.
// Rearm is safe for concurrent use.
func (w *Watch) Rearm() error {
	if err := rearm(w.dir, w.Add); err != nil {
		return fmt.Errorf("%s: %w", w.dir, err)
	}
	return nil
}

// Itself reports whether an event is about the directory or one of its parents, rather than about a file in the directory.
func (w *Watch) Itself(e Event) bool {
	name := Name(e)
	return name == w.dir || strings.HasPrefix(w.dir, name+"/")
}

// Name returns the clean path of an event. For a file in the root directory, e.Name begins with two slashes.
func Name(e Event) string { return filepath.Clean(e.Name) }

// Touched reports whether an event is about more than a file's mode or times.
func Touched(e Event) bool { return !e.Has(fsnotify.Chmod) }

// Moved reports whether a file or directory was created, removed or renamed. A write to a file does not count.
func Moved(e Event) bool { return e.Op&(fsnotify.Create|fsnotify.Remove|fsnotify.Rename) != 0 }

// rearm adds the watches for dir. rearm starts again if a missing directory appears before its parent is watched, because there
// is no event in this case.
func rearm(dir string, add func(dir string) error) error {
	for {
		missing, err := addNearest(dir, add)
		if missing == "" {
			return err
		}
		if _, statErr := os.Stat(missing); statErr != nil {
			return err
		}
	}
}

// addNearest starts to watch dir and its nearest existing parent. If directories are missing, addNearest returns the topmost
// missing one. addNearest ignores missing directories and errors from the parents.
func addNearest(dir string, add func(dir string) error) (missing string, err error) {
	if err = add(dir); errors.Is(err, os.ErrNotExist) {
		missing, err = dir, nil
	}
	for above := filepath.Dir(dir); ; above = filepath.Dir(above) {
		aboveErr := add(above)
		if errors.Is(aboveErr, os.ErrNotExist) {
			missing = above
		}
		if aboveErr == nil || above == "/" || above == "." {
			return missing, err
		}
	}
}
