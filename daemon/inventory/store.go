// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// identityFile is the name of the file.
const identityFile = "identities.json"

// Unfinished is the end of the name of a file that is to replace another.
const Unfinished = ".new"

// storeVersion is the version of the file's format.
const storeVersion = 1

// writeFirst and writeLast bound the time between attempts to write what could not be written.
const (
	writeFirst = time.Second
	writeLast  = time.Minute
)

// Store keeps the identities of the offered devices in a file, so that a device which a pod holds is still known after
// a restart or a reboot, whether it is there or not.
type Store struct {
	log    *slog.Logger
	latest chan contents   // one slot: what has not been written yet
	asked  chan chan error // who wants to know whether all is written
	ended  chan struct{}   // closed when nothing is written any more
	closed sync.WaitGroup
	doubt  bool // after a crash the file may be another than it is now; of writeAll alone
	unkept atomic.Pointer[error]
	kept   keptFile // the identities

	unkeptCordons atomic.Pointer[error]
	keptCordons   keptFile // the file beside that

	syncDir func(dir string) error // makes a rename last

	// Owned, if not nil, returns why nothing may be written into the directory, which is another's. It is set before use.
	Owned func() error
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
	Away     bool   `json:"away,omitempty"` // not in the offer: kept since it has to be erased before it is again
	Held     bool   `json:"held,omitempty"`
	Due      bool   `json:"due,omitempty"`
	Dirty    bool   `json:"dirty,omitempty"`
	Leftover bool   `json:"leftover,omitempty"`
	Medium   string `json:"medium,omitempty"`
	Given    string `json:"given,omitempty"`
	// Fingerprint and Blank are by what the data that a pod has left is known.
	Fingerprint string `json:"fingerprint,omitempty"`
	Blank       bool   `json:"blank,omitempty"`
	Failed      string `json:"failed,omitempty"`
	ByHand      ByHand `json:"byHand,omitempty"`

	Pods       []string `json:"pods,omitempty"`
	Appearance string   `json:"diskseq,omitempty"` // this and what follows, in the boot of [health]

	Initialised string `json:"initialised,omitempty"`
	Instance    uint64 `json:"inode,omitempty"`
}

type contents struct {
	Version int      `json:"version"`
	Devices []record `json:"devices"`
	Health  health   `json:"health"`
	// Evidence is of disks that are here or were. A disk without is read in full before it is offered.
	Evidence []evidenceRecord `json:"evidence,omitempty"`
	// Cordoned are the IDs of the devices in cordons.json, by which it shows that this is missing: as long as it is there, it
	// alone says which are cordoned.
	Cordoned []string `json:"cordoned,omitempty"`
}

// OpenStore returns the store in a directory, which is made if it is missing. Whether it can be written shows later, and
// is logged: a daemon without its state directory still serves.
func OpenStore(dir string, log *slog.Logger) *Store {
	s := newStore(dir, log)
	s.closed.Go(s.writeAll)
	return s
}

// newStore is OpenStore, but that nobody writes what is saved.
func newStore(dir string, log *slog.Logger) *Store {
	return &Store{
		log: log, syncDir: syncDir,
		kept: keptFile{path: filepath.Join(dir, identityFile)}, keptCordons: keptFile{path: filepath.Join(dir, cordonFile)},
		latest: make(chan contents, 1), asked: make(chan chan error), ended: make(chan struct{}),
	}
}

// Close writes what is still to be written.
func (s *Store) Close() {
	close(s.latest)
	s.closed.Wait()
}

// load reads the file, and tells whether that is all that was ever kept: one that is missing has never been there if nothing
// else of ours is.
func (s *Store) load() (c contents, whole bool) {
	err := take(s.kept.path, func(text []byte) (err error) {
		c, err = decode(text)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		if err = s.begun(); err == nil {
			return contents{}, true
		}
		err = fmt.Errorf("read %s: %w", s.kept.path, err)
	}
	if err != nil {
		s.log.Error("identities not read", "err", err)
		return contents{}, false
	}
	s.kept.remember()
	return c, true
}

func decode(text []byte) (c contents, err error) {
	if err := json.Unmarshal(text, &c); err != nil {
		return contents{}, err
	}
	if c.Version != storeVersion {
		return contents{}, fmt.Errorf("version is %d, not %d", c.Version, storeVersion)
	}
	return c, nil
}

// save has the contents written. It does not wait; only the newest are written.
func (s *Store) save(c contents) {
	select {
	case <-s.latest:
	default:
	}
	s.latest <- c
}

// Unkept returns why what was saved last cannot be written; nil: it is, or was not tried yet. It does not block.
func (s *Store) Unkept() error {
	if err := s.unkept.Load(); err != nil {
		return *err
	}
	return nil
}

// flush returns a channel of which comes, once all that was saved before is written, nil, or why it cannot be.
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

// writeAll writes what is saved. What cannot be written is tried again, less and less often, until it can or something
// newer is saved.
func (s *Store) writeAll() {
	defer close(s.ended)
	var unwritten *contents
	var complaint string
	pause := writeFirst
	for {
		var again <-chan time.Time
		if unwritten != nil {
			again = time.After(pause)
		}
		var asked chan error
		select {
		case c, ok := <-s.latest:
			if !ok {
				return // the attempt at what is unwritten has just been made
			}
			unwritten, pause = &c, writeFirst
		case asked = <-s.asked:
			select {
			case c, ok := <-s.latest:
				if ok {
					unwritten, pause = &c, writeFirst
				}
			default:
			}
		case <-again:
			pause = min(2*pause, writeLast)
		}
		err := s.write(unwritten)
		switch {
		case err == nil && complaint != "":
			s.log.Info("identities kept again")
			fallthrough
		case err == nil:
			unwritten, complaint = nil, ""
			s.unkept.Store(nil)
		case err.Error() != complaint:
			complaint = err.Error()
			s.unkept.Store(&err)
			s.log.Error("identities not kept", "err", err)
		}
		if asked != nil {
			asked <- err
		}
	}
}

// write replaces the file; nil is written already.
func (s *Store) write(c *contents) error {
	if c == nil {
		return nil
	}
	slices.SortFunc(c.Devices, func(a, b record) int { return strings.Compare(a.ID, b.ID) })
	next, err := s.writeBeside(s.kept.path, c.encode)
	switch {
	case err == nil:
		err = s.swap(next, &s.kept)
		s.doubt = err != nil
	case !s.doubt && s.has(c):
		return nil // no room is needed for it
	}
	return err
}

// has tells whether the file, which is not in doubt, holds these contents already, and will after a crash: the last daemon may
// have ended between the rename and the sync. Where one of ours has failed, the next proves nothing: Linux reports once what
// could not be written.
func (s *Store) has(c *contents) bool {
	kept, err := read(s.kept.path)
	if err != nil {
		return false
	}
	var next bytes.Buffer
	if err := c.encode(&next); err != nil || !bytes.Equal(kept, next.Bytes()) {
		return false
	}
	s.doubt = syncFile(s.kept.path) != nil || s.syncDir(filepath.Dir(s.kept.path)) != nil
	return !s.doubt
}

// encode writes the JSON of c with a line for each device, piece by piece: of thousands it is megabytes.
func (c contents) encode(w io.Writer) error {
	b := bufio.NewWriterSize(w, 64<<10)
	lines := json.NewEncoder(b)
	fmt.Fprintf(b, `{"version":%d,"health":`, c.Version)
	if err := lines.Encode(c.Health); err != nil {
		return err
	}
	if len(c.Evidence) > 0 {
		fmt.Fprint(b, `,"evidence":`)
		if err := lines.Encode(c.Evidence); err != nil {
			return err
		}
	}
	if len(c.Cordoned) > 0 {
		fmt.Fprint(b, `,"cordoned":`)
		if err := lines.Encode(c.Cordoned); err != nil {
			return err
		}
	}
	fmt.Fprint(b, `,"devices":[`)
	for i, r := range c.Devices {
		if i > 0 {
			fmt.Fprint(b, ",")
		}
		if err := lines.Encode(r); err != nil {
			return err
		}
	}
	fmt.Fprintln(b, "]}")
	return b.Flush() // returns the first error of them all
}
