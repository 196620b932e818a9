// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/directory"
	"github.com/metalplug/metalplug/internal/fsutil"
	"github.com/metalplug/metalplug/udev"
)

// quietPeriod is how long a file must be unchanged before it is read. An editor may save a file with several writes, and no event
// shows which write is the last one.
const quietPeriod = 20 * time.Millisecond

// maxText is the maximum size of a recording, in bytes. A recording of a machine with 10,000 devices is about 20 MB in size.
const maxText = 64 << 20

// Source is a [udev.Source] that reads a recording from a file. Saving the file simulates hotplug. The tree
// is in a temporary directory below $TMPDIR. For thousands of devices, that directory should be on a RAM disk, because each device
// has a dozen files.
type Source struct {
	// Listen calls Warn with the reason if it rejects a saved file. It then continues with the previous recording. Warn must be
	// set before Listen is called.
	Warn func(error)

	file    string
	root    string
	watcher *directory.Watch

	mu        sync.Mutex // locked while the tree changes
	recording *Recording // the present content of the tree
}

// Open reads a recording, writes its tree to a temporary directory, and starts to watch the file. The parameter is the name of a
// bundled recording or an absolute path. A bundled recording is not watched. The caller must close the source, which removes the
// tree.
func Open(file string) (_ *Source, err error) {
	s := &Source{file: file}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	// Open watches the directory, because editors replace the file with a new one. The watch starts before the first read, so
	// that Open misses no save.
	if s.watcher, err = directory.Open(filepath.Dir(file)); err != nil {
		return nil, err
	}
	if filepath.IsAbs(file) { // a bundled recording never changes
		err = s.watcher.Rearm()
	}
	if err != nil {
		return nil, err
	}
	if s.recording, err = readRecording(file); err != nil {
		return nil, err
	}
	if s.root, err = os.MkdirTemp("", "metalplug-recording-"); err != nil {
		return nil, fmt.Errorf("write the tree of the recording: %w; set TMPDIR", err)
	}
	return s, s.recording.Write(s.root)
}

// Check reads a recording, and returns the error with which Open would reject it.
func Check(file string) error {
	_, err := readRecording(file)
	return err
}

// readRecording reads and parses a recording.
func readRecording(file string) (r *Recording, err error) {
	var text []byte
	bundled := Bundled()
	if i := slices.IndexFunc(bundled, func(b BundledFile) bool { return b.Name == file }); i >= 0 {
		text = bundled[i].Text
	} else {
		text, err = fsutil.ReadRegular(file, maxText)
	}
	if err == nil && len(text) == 0 {
		err = errors.New("the file is empty; for a machine without devices, write a comment")
	}
	if err == nil {
		r, err = Parse(text)
	}
	if err != nil {
		return nil, fmt.Errorf("open recording %s: %w", file, fsutil.Cause(err))
	}
	return r, nil
}

// Root returns the directory that contains sys, dev and proc.
func (s *Source) Root() string { return s.root }

// Close stops watching the file and removes the tree. The caller must wait until Listen has returned.
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

// Enumerate returns the devices that are currently in the tree.
func (s *Source) Enumerate() ([]udev.Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recording.Devices(), nil
}

// Listen updates the tree each time the file is saved, and sends events for the differences. If the file is removed, the tree
// stays unchanged.
func (s *Source) Listen(ctx context.Context, events chan<- udev.Event) error {
	rest := time.NewTimer(quietPeriod) // the file may have been saved after Open
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event := <-s.watcher.Events:
			if directory.Name(event) == s.file && directory.Touched(event) {
				rest.Reset(quietPeriod)
			}
		case err := <-s.watcher.Errors:
			s.Warn(fmt.Errorf("watch recording: %w", err))
			rest.Reset(quietPeriod) // events may have been lost
		case <-rest.C:
			changes, err := s.reload()
			if err != nil {
				s.Warn(err)
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

// reload reads the file, updates the tree, and returns events for the differences.
func (s *Source) reload() ([]udev.Event, error) {
	after, err := readRecording(s.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// If an editor is replacing the file, another event follows.
		return nil, nil
	case err != nil:
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	events, err := s.recording.Update(s.root, after)
	if err == nil {
		s.recording = after
	}
	return events, err
}

//go:embed bundled/*.umockdev
var bundled embed.FS

// BundledFile is a recording that comes with the program.
type BundledFile struct {
	Name  string // name of the file without its extension, such as "nvme-blank"
	Title string // title from the comment "title" at the start of the text
	Text  []byte // text for [Parse]; the caller may modify it
}

// Bundled lists the recordings that come with the program, sorted by name.
func Bundled() []BundledFile {
	entries, _ := bundled.ReadDir("bundled") // reading embedded files cannot fail
	list := make([]BundledFile, len(entries))
	for i, entry := range entries {
		text, _ := bundled.ReadFile(path.Join("bundled", entry.Name()))
		first, _, _ := strings.Cut(string(text), "\n")
		title := strings.TrimSpace(strings.TrimPrefix(first, "# title:"))
		list[i] = BundledFile{strings.TrimSuffix(entry.Name(), ".umockdev"), title, text}
	}
	return list
}
