// SPDX-License-Identifier: Apache-2.0

// Package directory watches directories with inotify, including directories that are missing, or are removed and
// created again.
package directory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// Event reports a change of a file in one of the directories, or of a directory. [Name] returns its path. It is only a
// hint, so the receiver must check for itself.
type Event = fsnotify.Event

// Watch watches one or more directories. It sends events to its channel Events. An error in its channel Errors means
// that events may have been lost. It must be closed.
type Watch struct {
	*fsnotify.Watcher
	dirs []string
}

// Open returns a watch that watches nothing until [Watch.Rearm].
func Open(dirs ...string) (*Watch, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", strings.Join(dirs, ", "), err)
	}
	return &Watch{w, dirs}, nil
}

// Rearm watches the directories that exist now. For each missing one it watches the nearest existing parent, to notice when
// the directory is created. There are no events about changes or mounts of directories further up. A caller that needs them
// must check from time to time. Call it after an event for which [Watch.Itself] returns true, and after lost events. It is
// safe for concurrent use.
func (w *Watch) Rearm() error {
	var all error
	for _, dir := range w.dirs {
		if err := rearm(dir, w.Add); err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", dir, err))
		}
	}
	return all
}

// Itself reports whether an event concerns one of the directories itself or one of its parents, and not its content.
func (w *Watch) Itself(e Event) bool {
	name := Name(e)
	return slices.ContainsFunc(w.dirs, func(dir string) bool { return name == dir || strings.HasPrefix(dir, name+"/") })
}

// Name returns the clean path of an event. In e.Name, the path of a file directly in / begins with two slashes.
func Name(e Event) string { return filepath.Clean(e.Name) }

// Touched reports whether an event is more than a change of a file's mode or times.
func Touched(e Event) bool { return !e.Has(fsnotify.Chmod) }

// Moved reports whether a file or directory was created, removed or renamed, and not only written.
func Moved(e Event) bool { return e.Op&(fsnotify.Create|fsnotify.Remove|fsnotify.Rename) != 0 }

// rearm repeats a step that may have been too late. If a directory was created before its parent was watched, there is
// no event.
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

// addNearest adds dir and its nearest existing parent. It returns the last missing directory on the way up, or "". The
// error is that of dir, unless dir is missing.
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
