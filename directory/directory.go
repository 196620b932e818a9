// SPDX-License-Identifier: Apache-2.0

// Package directory follows directories by inotify, also those that are missing, or are removed and made again.
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

// Event reports a change of a file in one of the directories, or of a directory. [Name] returns which. It is only a hint,
// and the receiver looks for itself.
type Event = fsnotify.Event

// Watch is one or more directories that are followed. Events come from its channel Events. An error from its channel
// Errors means that some may have been lost. It has to be closed.
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

// Rearm watches the directories that exist now, and for each the nearest existing one above it, so that it is noticed
// when a missing one is made. It gets no event of changes further up, nor of a mount there. A caller that needs those
// looks from time to time. It is due after an event for which [Watch.Itself] is true, and after a lost one. It is safe
// for concurrent use.
func (w *Watch) Rearm() error {
	var all error
	for _, dir := range w.dirs {
		if err := rearm(dir, w.Add); err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", dir, err))
		}
	}
	return all
}

// Itself reports whether an event is of one of the directories itself, or of one above it, and not of what is in it.
func (w *Watch) Itself(e Event) bool {
	name := Name(e)
	return slices.ContainsFunc(w.dirs, func(dir string) bool { return name == dir || strings.HasPrefix(dir, name+"/") })
}

// Name returns the plain path of an event. A file directly in / has two slashes in front in e.Name.
func Name(e Event) string { return filepath.Clean(e.Name) }

// Touched reports whether more has happened to a file than a change of its mode or its times.
func Touched(e Event) bool { return !e.Has(fsnotify.Chmod) }

// Moved reports whether a file or directory has come or gone, and was not only written to.
func Moved(e Event) bool { return e.Op&(fsnotify.Create|fsnotify.Remove|fsnotify.Rename) != 0 }

// rearm repeats a step that may have come too late. A directory that was made before the one above it was watched causes
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

// addNearest adds dir and the nearest directory above it that exists, and returns the last one on the way up that was
// missing, or "". The error is that of dir, if it is not missing.
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
