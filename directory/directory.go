// SPDX-License-Identifier: Apache-2.0

// Package directory follows directories by inotify: also those that are missing, or are removed and made again.
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

// Event says that something has happened to a file in one of the directories, or to a directory: [Name] tells which. It is only
// a hint; who gets it looks for himself.
type Event = fsnotify.Event

// Watch is one or more directories that are followed. Events come from its channel Events; what comes from its channel Errors
// says that some may have been lost. It has to be closed.
type Watch struct {
	*fsnotify.Watcher
	dirs []string
}

// Open returns a watch that follows nothing until [Watch.Rearm].
func Open(dirs ...string) (*Watch, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", strings.Join(dirs, ", "), err)
	}
	return &Watch{w, dirs}, nil
}

// Rearm watches the directories, whichever are there now, and for each the nearest one above it that exists, so that it is
// noticed when a missing one is made. What happens further up is not told of, nor that a file system is mounted there: who
// cares for that looks from time to time. It is due after an event of which [Watch.Itself] says so, and after a lost one. It is
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

// Itself tells whether an event is of one of the directories itself, or of one above it, and not of what is in it.
func (w *Watch) Itself(e Event) bool {
	name := Name(e)
	return slices.ContainsFunc(w.dirs, func(dir string) bool { return name == dir || strings.HasPrefix(dir, name+"/") })
}

// Name returns the path of what an event is of, the plain one: what lies directly in / has two slashes in front in e.Name.
func Name(e Event) string { return filepath.Clean(e.Name) }

// Touched tells whether more has happened to a file than a change of its mode or its times.
func Touched(e Event) bool { return !e.Has(fsnotify.Chmod) }

// Moved tells whether a file or directory has come or gone, and was not only written to.
func Moved(e Event) bool { return e.Op&(fsnotify.Create|fsnotify.Remove|fsnotify.Rename) != 0 }

// rearm repeats what may have come too late: a directory that was made before the one above it was watched is not told
// of by any event.
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

// addNearest adds dir and the nearest directory above it that exists, and returns the last one on the way up that was
// missing; empty: none was. The error is that of dir, if it is not missing.
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
