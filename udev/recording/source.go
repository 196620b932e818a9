// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
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

// Source is a [udev.Source] that reads a recording from a file. Saving the file simulates hotplug. A Source keeps only the
// devices in memory. The tree and a copy of the text are in a temporary directory below $TMPDIR. For thousands of devices, that
// directory should be on a RAM disk, because each device has a dozen files.
type Source struct {
	// Listen calls Warn with the reason if it rejects a saved file. It then continues with the previous recording. Warn must be
	// set before Listen is called.
	Warn func(error)

	file    string
	root    string
	watcher *directory.Watch

	mu      sync.Mutex // locked while the tree changes
	devices []udev.Device
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
	s.watcher, err = directory.Open(filepath.Dir(file))
	if err == nil && filepath.IsAbs(file) { // a bundled recording never changes
		err = s.watcher.Rearm()
	}
	if err != nil {
		return nil, err
	}
	text, r, err := readRecording(file, nil)
	if err != nil {
		return nil, err
	}
	if s.root, err = os.MkdirTemp("", "metalplug-recording-"); err != nil {
		return nil, fmt.Errorf("write the tree of the recording: %w; set TMPDIR", err)
	}
	s.devices = r.Devices()
	return s, errors.Join(r.Write(s.root), os.WriteFile(s.copyName(), text, 0o600))
}

// Check reads a recording, and returns the error with which Open would reject it.
func Check(file string) error {
	_, _, err := readRecording(file, nil)
	return err
}

// readRecording reads and parses a recording. If the text is the same as the parameter "known", readRecording does not parse it,
// and returns nil instead of a recording.
func readRecording(file string, known []byte) (text []byte, r *Recording, err error) {
	bundled := Bundled()
	if i := slices.IndexFunc(bundled, func(b BundledFile) bool { return b.Name == file }); i >= 0 {
		text = bundled[i].Text
	} else {
		text, err = fsutil.ReadRegular(file, maxText)
	}
	if err == nil && (known == nil || !bytes.Equal(text, known)) {
		r, err = Parse(text)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open recording %s: %w", file, fsutil.Cause(err))
	}
	return text, r, nil
}

// Root returns the directory that contains sys, dev and proc.
func (s *Source) Root() string { return s.root }

// Close stops watching the file and removes the tree. The caller must wait until Listen has returned.
func (s *Source) Close() error {
	var err error
	if s.watcher != nil {
		err = s.watcher.Close()
	}
	return errors.Join(err, os.RemoveAll(s.root)) // RemoveAll ignores an empty path
}

// Enumerate returns the devices that are currently in the tree.
func (s *Source) Enumerate() ([]udev.Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.devices), nil
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

// reload reads the file. If the text has changed, reload updates the tree and the copy of the text, and returns events for the
// differences.
func (s *Source) reload() ([]udev.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	present, err := os.ReadFile(s.copyName())
	if err != nil {
		return nil, err
	}
	text, after, err := readRecording(s.file, present)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// If an editor is replacing the file, another event follows.
		return nil, nil
	case err != nil || after == nil:
		return nil, err
	case len(text) == 0:
		return nil, fmt.Errorf("open recording %s: the file is empty; for a machine without devices, write a comment", s.file)
	}
	before, err := Parse(present)
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

// copyName returns the path to the copy of the recording's text.
func (s *Source) copyName() string { return filepath.Join(s.root, "recording.umockdev") }

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
