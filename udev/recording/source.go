// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/directory"
	"github.com/metalplug/metalplug/internal/liveness"
	"github.com/metalplug/metalplug/udev"
)

// quiet is how long a file has to rest before it is read: a save is several writes, and no event tells the last.
const quiet = 20 * time.Millisecond

// away is how long an editor may take to put the new file in the place of the old one, before that is said to be gone.
const away = time.Second

// fileSize is the largest recording that is read, in bytes: room for a machine of ten thousands of devices.
const fileSize = 64 << 20

// Source is a recording in a file, as a [udev.Source]: saving the file is a hotplug. It keeps no part of the recording
// in memory, only its tree and a copy of the text in a directory of its own: below $TMPDIR, which had better be in memory
// for a machine of thousands of devices, each of which is a dozen files.
type Source struct {
	// Warn is told why a saved file was not taken over; everything then stays as it was. It is called from Listen and
	// must be set before. Nil: nobody is told.
	Warn func(error)

	file    string
	place   *place // nil: there is none yet
	watcher *directory.Watch
	absent  int // how often the file was looked for in vain; owned by Listen
	probe   liveness.Probe
	mu      sync.Mutex // held while the tree or the copy changes
}

// Open reads the recording in a file, writes its tree to a temporary directory of its own and watches the file from then on.
// The caller has to close the source, which removes the tree; that of a process that was killed is removed by the next Open.
func Open(file string) (*Source, error) {
	s, err := open(file)
	if err != nil {
		return nil, fmt.Errorf("open recording %s: %w", file, err)
	}
	return s, nil
}

func open(file string) (_ *Source, err error) {
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
	// The directory, for an editor puts a new file in place of the old one. Watch first, then read: a save between is
	// seen twice, never missed.
	if s.watcher, err = directory.Open(filepath.Dir(file)); err != nil {
		return nil, err
	}
	if err := s.watcher.Rearm(); err != nil {
		return nil, err
	}
	text, err := readFile(file)
	if err != nil {
		return nil, err
	}
	r, err := Parse(text)
	if err != nil {
		return nil, err
	}
	removeLeft()
	if s.place, err = newPlace(); err != nil {
		return nil, err
	}
	if err := r.Write(s.Root()); err != nil {
		return nil, err
	}
	return s, os.WriteFile(s.copyName(), text, 0o600) // last: it marks the place as whole
}

// Check returns why the recording in a file could not be opened, or nil. It reads all of it.
func Check(file string) error {
	text, err := readFile(file)
	if err == nil {
		_, err = Parse(text)
	}
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err // the name is told here
	}
	if err != nil {
		return fmt.Errorf("open recording %s: %w", file, err)
	}
	return nil
}

// readFile returns the text of a recording.
func readFile(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe would wait for its writer
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() && !info.IsDir() { // reading a directory is an error that says so
		return nil, errors.New("it is not a regular file")
	}
	text, err := io.ReadAll(io.LimitReader(f, fileSize+1))
	if err == nil && len(text) > fileSize {
		err = fmt.Errorf("it is larger than %d bytes", fileSize)
	}
	return text, err
}

// Root is the directory in which sys, dev and proc are.
func (s *Source) Root() string { return s.place.path }

// Close stops watching and removes the tree. Listen must have returned.
func (s *Source) Close() error {
	var err error
	if s.watcher != nil {
		err = s.watcher.Close()
	}
	if s.place != nil {
		err = errors.Join(err, s.place.end())
	}
	return err
}

// Enumerate lists the devices of the recording as the tree has them now.
func (s *Source) Enumerate() ([]udev.Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := os.ReadFile(s.copyName())
	if err != nil {
		return nil, fmt.Errorf("enumerate recording: %w", err)
	}
	r, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("enumerate recording: %w", err)
	}
	return r.Devices(), nil
}

// Settled is always true: a recording has no boot.
func (s *Source) Settled() bool { return true }

// Listen applies each save of the file to the tree and sends the events of the difference.
func (s *Source) Listen(ctx context.Context, events chan<- udev.Event) error {
	rest := time.NewTimer(quiet) // also for a save since Open
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, ok := <-s.watcher.Events:
			if !ok {
				return errors.New("watch recording: closed")
			}
			if s.watcher.Itself(event) {
				s.rearm()
				rest.Reset(quiet)
			}
			if directory.Name(event) == s.file && directory.Touched(event) {
				rest.Reset(quiet)
			}
		case err, ok := <-s.watcher.Errors:
			if !ok {
				return errors.New("watch recording: closed")
			}
			s.warn(fmt.Errorf("watch recording: %w", err))
			s.rearm()
			rest.Reset(quiet) // events may have been lost
		case answer := <-s.probe.Asked():
			answer()
		case <-rest.C:
			if err := s.send(ctx, s.reload(), events); err != nil {
				return err
			}
			if s.absent == 1 {
				rest.Reset(away)
			}
		}
	}
}

// Alive returns once Listen has gone round, or with the error of ctx.
func (s *Source) Alive(ctx context.Context) error {
	return s.probe.Alive(ctx, "recording")
}

func (s *Source) send(ctx context.Context, what []udev.Event, events chan<- udev.Event) error {
	for _, event := range what {
		select {
		case events <- event:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// reload takes over the file as it is now, if it can.
func (s *Source) reload() []udev.Event {
	text, err := readFile(s.file)
	switch {
	case errors.Is(err, fs.ErrNotExist): // the next file will be an event, also in a directory that is made again
		if s.absent++; s.absent != 2 {
			return nil // an editor may be at work, or it was told already
		}
		err = errors.New("it is gone: the devices stay as they were until it is there again")
	case err == nil && len(text) == 0:
		err = errors.New("the file is empty; a comment alone stands for a machine without devices")
	case err == nil:
		var events []udev.Event
		s.absent = 0
		if events, err = s.update(text); err == nil {
			return events
		}
	}
	s.warn(fmt.Errorf("reload recording %s: %w", s.file, err))
	return nil
}

// rearm goes on watching where the directory of the file may be another one by now.
func (s *Source) rearm() {
	if err := s.watcher.Rearm(); err != nil {
		s.warn(fmt.Errorf("watch recording: %w", err))
	}
}

// update replaces the tree and the copy of its text.
func (s *Source) update(text []byte) ([]udev.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	present, err := os.ReadFile(s.copyName())
	if err != nil || bytes.Equal(present, text) {
		return nil, err
	}
	before, err := parse(present)
	if err != nil {
		return nil, err
	}
	after, err := Parse(text)
	if err != nil {
		return nil, err
	}
	events, err := before.Update(s.Root(), after)
	if err != nil {
		return nil, err
	}
	return events, os.WriteFile(s.copyName(), text, 0o600)
}

// copyName is where the text is that the tree was made of; the caller holds mu.
func (s *Source) copyName() string { return filepath.Join(s.Root(), marker) }

func (s *Source) warn(err error) {
	if s.Warn != nil {
		s.Warn(err)
	}
}
