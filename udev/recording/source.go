// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/metalplug/metalplug/directory"
	"github.com/metalplug/metalplug/internal/fsutil"
	"github.com/metalplug/metalplug/udev"
)

// quiet is how long a file has to rest before it is read. A save is several writes, and no event marks the last.
const quiet = 20 * time.Millisecond

// maxText is the largest recording that is read, in bytes. A machine of 10,000 devices has some 20 MB.
const maxText = 64 << 20

// Source is a recording in a file, as a [udev.Source]. Saving the file is a hotplug. It keeps only the devices of the
// recording in memory. Its tree and a copy of the text are in a directory of its own below $TMPDIR, which had better be in
// memory for a machine of thousands of devices, each of which is a dozen files.
type Source struct {
	// Warn is called from Listen with the reason why a saved file was not taken over. Everything then stays as it was. It
	// must be set before. It may be nil.
	Warn func(error)

	file    string
	root    string
	watcher *directory.Watch

	mu      sync.Mutex // held while the tree changes
	devices []udev.Device
}

// Open reads the recording in a file, writes its tree to a temporary directory and watches the file from then on. The
// caller has to close the source, which removes the tree.
func Open(file string) (_ *Source, err error) {
	// Absolute, since the watcher reports names the way they were given.
	if file, err = filepath.Abs(file); err != nil {
		return nil, err
	}
	s := &Source{file: file}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	// The directory, for an editor puts a new file in place of the old one. It watches first and then reads, so that a save
	// in between is seen twice, never missed.
	if s.watcher, err = directory.Open(filepath.Dir(file)); err != nil {
		return nil, err
	}
	if err := s.watcher.Rearm(); err != nil {
		return nil, err
	}
	text, r, err := read(file)
	if err != nil {
		return nil, err
	}
	if s.root, err = os.MkdirTemp("", "metalplug-recording-"); err != nil {
		return nil, fmt.Errorf("write the tree of the recording: %w; set TMPDIR", err)
	}
	if err := r.Write(s.root); err != nil {
		return nil, err
	}
	s.devices = r.Devices()
	return s, os.WriteFile(s.copyName(), text, 0o600)
}

// Check returns why the recording in a file could not be opened, or nil. It reads all of it.
func Check(file string) error {
	_, _, err := read(file)
	return err
}

// read reads a recording.
func read(file string) (text []byte, r *Recording, err error) {
	if text, err = readText(file); err != nil {
		return nil, nil, err
	}
	if r, err = Parse(text); err != nil {
		return nil, nil, fmt.Errorf("open recording %s: %w", file, err)
	}
	return text, r, nil
}

func readText(file string) ([]byte, error) {
	text, err := fsutil.ReadRegular(file, maxText)
	if err != nil {
		return nil, fmt.Errorf("open recording %s: %w", file, fsutil.Cause(err))
	}
	return text, nil
}

// Root is the directory in which sys, dev and proc are.
func (s *Source) Root() string { return s.root }

// Close stops watching and removes the tree. Listen must have returned.
func (s *Source) Close() error {
	var err error
	if s.watcher != nil {
		err = s.watcher.Close()
	}
	if s.root != "" {
		err = errors.Join(err, os.RemoveAll(s.root))
	}
	return err
}

// Enumerate lists the devices of the recording as the tree has them now.
func (s *Source) Enumerate() ([]udev.Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.devices), nil
}

// Listen applies each save of the file to the tree and sends the events of the difference. A file that is gone changes
// nothing.
func (s *Source) Listen(ctx context.Context, events chan<- udev.Event) error {
	rest := time.NewTimer(quiet) // also for a save since Open
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event := <-s.watcher.Events:
			if directory.Name(event) == s.file && directory.Touched(event) {
				rest.Reset(quiet)
			}
		case err := <-s.watcher.Errors:
			s.warn(fmt.Errorf("watch recording: %w", err))
			rest.Reset(quiet) // events may have been lost
		case <-rest.C:
			changes, err := s.reload()
			if err != nil {
				s.warn(err)
			}
			for _, event := range changes {
				select {
				case events <- event:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
	}
}

// reload takes over the file as it is now. It replaces the tree and the copy of its text.
func (s *Source) reload() ([]udev.Event, error) {
	text, err := readText(s.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil // an editor may be at work, and the next file is an event
	case err != nil:
		return nil, err
	case len(text) == 0:
		return nil, fmt.Errorf("open recording %s: the file is empty; a comment alone stands for a machine without devices", s.file)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if present, err := readText(s.copyName()); err != nil || bytes.Equal(present, text) {
		return nil, err
	}
	after, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("open recording %s: %w", s.file, err)
	}
	_, before, err := read(s.copyName())
	if err != nil {
		return nil, err
	}
	events, err := before.Update(s.root, after)
	if err != nil {
		return nil, err
	}
	s.devices = after.Devices()
	return events, os.WriteFile(s.copyName(), text, 0o600)
}

// copyName is where the text is that the tree was made of.
func (s *Source) copyName() string { return filepath.Join(s.root, "recording.umockdev") }

func (s *Source) warn(err error) {
	if s.Warn != nil {
		s.Warn(err)
	}
}
