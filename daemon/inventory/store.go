// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
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

	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/internal/fsutil"
)

// stateFile is the name of the file in paths.state.
const stateFile = "state.json"

// stateVersion is the version of the file's format.
const stateVersion = 2

// stateSize bounds the read of the file in bytes. A device takes less than 4 KiB of it, and no node has 16,384.
const stateSize = 64 << 20

// minSaveBackoff and maxSaveBackoff bound the time between attempts to save.
const minSaveBackoff, maxSaveBackoff = time.Second, time.Minute

// Store keeps the state that must outlast a restart and a reboot, in one file.
type Store struct {
	Machine string // the ID of the node, set before use. A file of any node counts if it is empty.

	log    *slog.Logger
	path   string
	latest chan *encoded   // one slot, for the contents that are not written yet
	asked  chan chan error // calls that wait until all is written
	ended  chan struct{}   // closed when the writer has ended
	closed sync.WaitGroup
	onDisk [sha256.Size]byte // the contents after a crash, or zero if unknown, owned by writeAll after load
	unkept atomic.Pointer[error]
}

// record is one device in the file.
type record struct {
	ID       string `json:"id"`
	Class    string `json:"class"`
	Resource string `json:"resource"`
	Model    string `json:"model,omitempty"`
	SysPath  string `json:"sysfsPath"`
	NUMANode int    `json:"numaNode"`
	Present  bool   `json:"present"`
	Away     bool   `json:"away,omitempty"` // not in the device list until it is erased

	lease.Lease
	// Owed is the kubelet that may not be done with its Allocate, or nil.
	Owed *string `json:"owed,omitempty"`
	Disk string  `json:"disk,omitempty"` // the medium that was seen
	// Fingerprint and Blank are by what the data that a tenant has left is known.
	Fingerprint string   `json:"fingerprint,omitempty"`
	Blank       bool     `json:"blank,omitempty"`
	Appearance  string   `json:"diskseq,omitempty"` // this and what follows, in the boot of [health]
	Wrote       wrote    `json:"wrote,omitzero"`
	Given       []string `json:"given,omitempty"` // the nodes that its pods were given

	Initialised string `json:"initialised,omitempty"`
	Instance    uint64 `json:"inode,omitempty"`
}

type contents struct {
	Version int    `json:"version"`
	Machine string `json:"machine"` // as in [Store]
	Health  health `json:"health"`
	// Evidence belongs to disks, also absent ones. A disk without evidence is read in full before it is offered.
	Evidence []evidenceRecord `json:"evidence,omitempty"`
	// Cordons keep devices from new pods, by ID.
	Cordons map[string]Cordon `json:"cordons,omitempty"`
	Devices []record          `json:"devices"` // the last
}

// OpenStore returns the store in a directory, and makes the directory if it is missing. A daemon without its state directory
// still serves. The store logs the failure when it saves.
func OpenStore(dir string, log *slog.Logger) *Store {
	_ = os.MkdirAll(dir, 0o700)
	s := &Store{
		log: log, path: filepath.Join(dir, stateFile),
		latest: make(chan *encoded, 1), asked: make(chan chan error), ended: make(chan struct{}),
	}
	s.closed.Go(s.writeAll)
	return s
}

// Close writes the last contents and ends the writer.
func (s *Store) Close() {
	close(s.latest)
	s.closed.Wait()
}

// load reads the file. The error says that there was a state and that it is lost. A file that cannot be read is moved aside
// once, as state.json.damaged.
func (s *Store) load() (contents, error) {
	text, err := fsutil.ReadRegular(s.path, stateSize)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return contents{}, s.removed()
	}
	if err == nil {
		var c contents
		if c, err = s.decode(text); err == nil {
			if syncFile(s.path) == nil { // the last daemon may have died between rename and sync
				s.onDisk = sha256.Sum256(text)
			}
			return c, nil
		}
		err = fmt.Errorf("read %s: %w", s.path, err)
	}
	aside := s.path + ".damaged"
	if moveErr := os.Rename(s.path, aside); moveErr != nil {
		return contents{}, fmt.Errorf("%w; move it away: %w", err, moveErr)
	}
	return contents{}, fmt.Errorf("%w; it was moved to %s", err, aside)
}

// removed returns an error if other files of the daemon show that a state file was there.
func (s *Store) removed() error {
	for _, trace := range []string{s.path + ".damaged", filepath.Join(filepath.Dir(s.path), "audit.jsonl")} {
		if _, err := os.Lstat(trace); err == nil {
			return fmt.Errorf("%s was removed, and %s is still there", s.path, filepath.Base(trace))
		}
	}
	return nil
}

func (s *Store) decode(text []byte) (c contents, err error) {
	err = json.Unmarshal(text, &c)
	switch {
	case err == nil && c.Version != stateVersion:
		err = fmt.Errorf("version is %d, not %d", c.Version, stateVersion)
	case err == nil && s.Machine != "" && c.Machine != s.Machine:
		err = errors.New("it was written on another machine")
	}
	for _, r := range c.Devices {
		if invalid := r.Valid(); err == nil && invalid != nil {
			err = fmt.Errorf("%s: %w", r.ID, invalid)
		}
	}
	return c, err
}

// syncFile makes the file and its name outlast a crash.
func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return errors.Join(f.Sync(), fsutil.SyncDir(filepath.Dir(name)))
}

// encoded is the JSON of the contents, with a line for each device. A device that has not changed keeps its line. The lines of
// thousands are megabytes, and a container waits for the file.
type encoded struct {
	head  []byte
	lines [][]byte // never written
}

// encode encodes all but the devices.
func (c contents) encode(lines [][]byte) (*encoded, error) {
	c.Devices = nil
	head, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return &encoded{bytes.TrimSuffix(head, []byte("null}")), lines}, nil
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
	return b.Flush() // returns the first error of them all
}

// save passes contents to the writer, which writes only the newest. It does not wait.
func (s *Store) save(c *encoded) {
	select {
	case <-s.latest:
	default:
	}
	s.latest <- c
}

// Unkept returns why the last contents could not be written, or nil. It does not block.
func (s *Store) Unkept() error {
	if err := s.unkept.Load(); err != nil {
		return *err
	}
	return nil
}

// flush returns a channel that gets nil once all contents from before are written, or an error.
func (s *Store) flush() chan error {
	written := make(chan error, 1)
	go func() {
		select {
		case s.asked <- written:
		case <-s.ended:
			written <- errStopped
		}
	}()
	return written
}

// writeAll writes the contents that save passes. After a failure it tries again, less and less often, until it succeeds or
// there are newer contents.
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
				return // the last attempt has just been made
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

// write replaces the file, unless c is nil. It returns nil on a full or read-only disk if the file has these contents already.
func (s *Store) write(c *encoded) error {
	if c == nil {
		return nil
	}
	sum := sha256.New()
	err := fsutil.ReplaceFile(s.path, 0o600, func(w io.Writer) error { return c.writeTo(io.MultiWriter(w, sum)) })
	switch {
	case errors.Is(err, fsutil.ErrUnsynced):
		s.onDisk = [sha256.Size]byte{}
	case err == nil:
		s.onDisk = [sha256.Size]byte(sum.Sum(nil))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		err = fmt.Errorf("%w: make paths.state a directory and restart metalplugd", err)
	default:
		sum.Reset()
		if c.writeTo(sum) == nil && s.onDisk == [sha256.Size]byte(sum.Sum(nil)) {
			return nil
		}
	}
	return err
}
