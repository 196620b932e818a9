// SPDX-License-Identifier: Apache-2.0

// Package statefile saves the state of the daemon in one file. A separate goroutine writes it, so a slow disk delays
// only the calls that wait for it.
package statefile

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/internal/fsutil"
)

// stateFile is the name of the file in paths.state.
const stateFile = "state.json"

// stateSize is the maximum size of the file in bytes. Each device takes less than 4 KiB, and no node has 16,384 devices.
const stateSize = 64 << 20

// minSaveBackoff and maxSaveBackoff are the limits of the time between attempts to save.
const minSaveBackoff, maxSaveBackoff = time.Second, time.Minute

// errClosed is returned after [Store.Close].
var errClosed = errors.New("the state file is closed")

// Store saves the state that must outlast restarts and reboots in one file.
type Store struct {
	log    *slog.Logger
	path   string
	latest chan *encoded   // has a buffer of one, for the contents to write next
	asked  chan chan error // channels of callers that wait until everything is written
	ended  chan struct{}   // closed when the writer has ended
	closed sync.WaitGroup
	onDisk [sha256.Size]byte // hash of the contents that survive a crash, or zero if unknown; owned by writeAll after Load
	unkept atomic.Pointer[error]
}

// Open returns the store in a directory, and creates the directory if it is missing. If this fails, the daemon can still
// serve devices. The store logs the failure when it saves.
func Open(dir string, log *slog.Logger) *Store {
	_ = os.MkdirAll(dir, 0o700)
	s := &Store{
		log: log, path: filepath.Join(dir, stateFile),
		latest: make(chan *encoded, 1), asked: make(chan chan error), ended: make(chan struct{}),
	}
	s.closed.Go(s.writeAll)
	return s
}

// Close writes the last contents and stops the writer.
func (s *Store) Close() {
	close(s.latest)
	s.closed.Wait()
}

// Load reads the file and decodes it. An error means that the daemon had saved a state and that this state is lost. Load
// renames a file that it cannot read or decode to state.json.damaged. Load must precede the first [Store.Save].
func (s *Store) Load(decode func(text []byte) error) error {
	text, err := fsutil.ReadRegular(s.path, stateSize)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return s.removed()
	}
	if err == nil {
		if err = decode(text); err == nil {
			if syncFile(s.path) == nil { // the last daemon may have been killed between rename and sync
				s.onDisk = sha256.Sum256(text)
			}
			return nil
		}
		err = fmt.Errorf("read %s: %w", s.path, err)
	}
	aside := s.path + ".damaged"
	if moveErr := os.Rename(s.path, aside); moveErr != nil {
		return fmt.Errorf("%w; move it away: %w", err, moveErr)
	}
	return fmt.Errorf("%w; it was moved to %s", err, aside)
}

// removed returns an error if other files in the directory show that a state file existed.
func (s *Store) removed() error {
	for _, trace := range []string{s.path + ".damaged", filepath.Join(filepath.Dir(s.path), "audit.jsonl")} {
		if _, err := os.Lstat(trace); err == nil {
			return fmt.Errorf("%s was removed, but %s still exists", s.path, filepath.Base(trace))
		}
	}
	return nil
}

// syncFile flushes the file and its directory entry to disk.
func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return errors.Join(f.Sync(), fsutil.SyncDir(filepath.Dir(name)))
}

// encoded is the JSON of the contents, with one line for each device. The line of an unchanged device is reused. For
// thousands of devices the lines take megabytes, and the start of a container may wait for the file.
type encoded struct {
	head  []byte
	lines [][]byte // never modified
}

// writeTo writes the devices in the order of their IDs, with which each line begins.
func (c *encoded) writeTo(w io.Writer) error {
	b := bufio.NewWriterSize(w, 64<<10)
	b.Write(c.head)
	b.WriteByte('[')
	slices.SortFunc(c.lines, bytes.Compare)
	for i, line := range c.lines {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		b.Write(line)
	}
	b.WriteString("\n]}\n")
	return b.Flush() // returns the first error of all writes
}

// Save passes contents to the writer. The writer skips contents that newer ones have replaced. The contents are a JSON
// object: head is its text up to the value of the last key, and lines is that value, one element in each line. The lines are
// JSON, and must not be modified afterwards. Save does not wait.
func (s *Store) Save(head []byte, lines [][]byte) {
	select {
	case <-s.latest:
	default:
	}
	s.latest <- &encoded{head, lines}
}

// Unkept returns the error of the last write, or nil if it succeeded. It does not block.
func (s *Store) Unkept() error {
	if err := s.unkept.Load(); err != nil {
		return *err
	}
	return nil
}

// Flush returns a channel. It receives nil when all contents that were saved before are on disk, or an error if they cannot
// be written.
func (s *Store) Flush() chan error {
	written := make(chan error, 1)
	go func() {
		select {
		case s.asked <- written:
		case <-s.ended:
			written <- errClosed
		}
	}()
	return written
}

// writeAll writes the contents that [Store.Save] passes. After a failure it retries with growing pauses. It stops when a
// write succeeds or newer contents arrive.
func (s *Store) writeAll() {
	defer close(s.ended)
	var unwritten *encoded
	var complaint string
	pause := minSaveBackoff
	for {
		var again <-chan time.Time
		if unwritten != nil {
			again = time.After(pause)
		}
		var asked chan error
		select {
		case c, ok := <-s.latest:
			if !ok {
				return // the write above was the last attempt
			}
			unwritten, pause = c, minSaveBackoff
		case asked = <-s.asked:
			select {
			case c, ok := <-s.latest:
				if ok {
					unwritten, pause = c, minSaveBackoff
				}
			default:
			}
		case <-again:
			pause = min(2*pause, maxSaveBackoff)
		}
		err := s.write(unwritten)
		switch {
		case err == nil && complaint != "":
			s.log.Info("state saved again")
			fallthrough
		case err == nil:
			unwritten, complaint = nil, ""
			s.unkept.Store(nil)
		case err.Error() != complaint:
			complaint = err.Error()
			s.unkept.Store(&err)
			s.log.Error("state not saved", "err", err)
		}
		if asked != nil {
			asked <- err
		}
	}
}

// write replaces the file. It does nothing if c is nil or the file already has these contents.
func (s *Store) write(c *encoded) error {
	if c == nil {
		return nil
	}
	hash := sha256.New()
	_ = c.writeTo(hash) // hashing never fails
	sum := [sha256.Size]byte(hash.Sum(nil))
	if sum == s.onDisk {
		return nil
	}
	err := fsutil.ReplaceFile(s.path, 0o600, c.writeTo)
	switch {
	case err == nil:
		s.onDisk = sum
	case errors.Is(err, fsutil.ErrUnsynced):
		s.onDisk = [sha256.Size]byte{}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		err = fmt.Errorf("%w: make paths.state a directory and restart metalplugd", err)
	}
	return err
}
