// SPDX-License-Identifier: Apache-2.0

// Package statefile saves the daemon's state in one file. A separate goroutine writes the file, so a slow disk delays only the
// callers that wait for their changes to be on disk.
package statefile

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/internal/fsutil"
	"github.com/metalplug/metalplug/internal/liveness"
)

// stateFile is the name of the state file in the directory paths.state.
const stateFile = "state.json"

// stateSize is the maximum size of the file in bytes. Each device takes less than 4 KiB, so this is enough for 16,384 devices.
const stateSize = 64 << 20

// retryInterval is the time between two attempts to save.
const retryInterval = 5 * time.Second

// Store writes one file with the state that must survive restarts and reboots.
type Store struct {
	log  *slog.Logger
	path string
	// latest is a function that encodes the state to write next. latest is nil once the writer has taken this function.
	latest atomic.Pointer[func() ([]byte, error)]
	saved  chan struct{} // buffer of one, filled when latest is set
	// Each caller that waits for a write sends a channel to the writer, which sends the write's result on it.
	asked    chan chan error
	closing  chan struct{}         // closed by Close
	ended    chan struct{}         // closed when the writer has ended
	onDisk   [sha256.Size]byte     // hash of the content that would survive a crash, or zero
	writeErr atomic.Pointer[error] // see [Store.WriteError]
}

// Open returns the store for a directory. Open creates the directory if necessary. If the directory cannot be created, the daemon
// can still serve devices that are not disks, and the store logs an error for each failed save.
func Open(dir string, log *slog.Logger) *Store {
	_ = os.MkdirAll(dir, 0o700)
	s := &Store{
		log: log, path: filepath.Join(dir, stateFile),
		saved: make(chan struct{}, 1), asked: make(chan chan error), closing: make(chan struct{}), ended: make(chan struct{}),
	}
	go s.writeAll()
	return s
}

// Close writes the last state and stops the writer.
func (s *Store) Close() {
	close(s.closing)
	<-s.ended
}

// Load reads and decodes the file. An error means that an earlier daemon saved a state that is now lost. If the file cannot be
// read or decoded, Load renames it to state.json.damaged. Load must be called before the first [Store.Save].
func (s *Store) Load(decode func(text []byte) error) error {
	text, err := fsutil.ReadRegular(s.path, stateSize)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return s.checkRemoved()
	}
	if err == nil {
		if err = decode(text); err == nil {
			if fsutil.SyncDir(filepath.Dir(s.path)) == nil { // an earlier daemon may have been killed before it synced the directory
				s.onDisk = sha256.Sum256(text)
			}
			return nil
		}
		err = fmt.Errorf("read %s: %w", s.path, err)
	}
	aside := s.path + ".damaged"
	if moveErr := os.Rename(s.path, aside); moveErr != nil {
		return fmt.Errorf("%w; move the file away: %w", err, moveErr)
	}
	return fmt.Errorf("%w; the file was moved to %s", err, aside)
}

// checkRemoved returns an error if other files in the directory show that a state file existed and was removed.
func (s *Store) checkRemoved() error {
	for _, trace := range []string{s.path + ".damaged", filepath.Join(filepath.Dir(s.path), "audit.jsonl")} {
		if _, err := os.Lstat(trace); err == nil {
			return fmt.Errorf("%s was removed, but %s still exists", s.path, filepath.Base(trace))
		}
	}
	return nil
}

// Save passes a state to the writer, which calls the function encode. If a newer state arrives first, the writer skips the older
// one. Save does not block.
func (s *Store) Save(encode func() ([]byte, error)) {
	s.latest.Store(&encode)
	liveness.Poke(s.saved)
}

// WriteError returns the error from the last write, or nil if it succeeded. WriteError does not block.
func (s *Store) WriteError() error { return *cmp.Or(s.writeErr.Load(), new(error)) }

// Flush waits until all states that were passed to Save earlier are on disk. An error comes from the write or from ctx.
func (s *Store) Flush(ctx context.Context) error {
	written := make(chan error, 1)
	select {
	case s.asked <- written:
	case <-s.ended:
		return errors.New("the state file is closed")
	case <-ctx.Done():
	}
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return fmt.Errorf("save the state: %w", ctx.Err())
	}
}

// writeAll writes the states that [Store.Save] passes to it. If a write fails, writeAll tries again every [retryInterval], until
// a write succeeds or a newer state arrives.
func (s *Store) writeAll() {
	defer close(s.ended)
	var unwritten *func() ([]byte, error)
	for closing := false; !closing; {
		var again <-chan time.Time
		if unwritten != nil {
			again = time.After(retryInterval)
		}
		var asked chan error
		select {
		case <-s.saved:
		case asked = <-s.asked:
		case <-again:
		case <-s.closing:
			closing = true
		}
		if encode := s.latest.Swap(nil); encode != nil {
			unwritten = encode
		}
		var err error
		if unwritten != nil {
			err = s.write(*unwritten)
		}
		switch last := s.WriteError(); {
		case err == nil && last != nil:
			s.log.Info("state saved again")
			fallthrough
		case err == nil:
			unwritten = nil
			s.writeErr.Store(nil)
		case last == nil || err.Error() != last.Error():
			s.writeErr.Store(&err)
			s.log.Error("state not saved", "err", err)
		}
		if asked != nil {
			asked <- err
		}
	}
}

// write replaces the file, unless the file already has this content.
func (s *Store) write(encode func() ([]byte, error)) error {
	text, err := encode()
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	if sum == s.onDisk {
		return nil
	}
	if err = fsutil.ReplaceFile(s.path, 0o600, text); err == nil {
		s.onDisk = sum
		return nil
	}
	// After most errors, the file is unchanged. If a later state equals the file, that state is already saved.
	if old, readErr := fsutil.ReadRegular(s.path, stateSize); readErr != nil || sha256.Sum256(old) != s.onDisk {
		s.onDisk = [sha256.Size]byte{}
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("%w: make paths.state a directory and restart metalplugd", err)
	}
	return fmt.Errorf("%w: metalplugd cannot save its state; free space, or make paths.state writable", err)
}
