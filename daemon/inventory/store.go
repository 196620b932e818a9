// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

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
	file   string
	log    *slog.Logger
	latest chan contents // one slot: what has not been written yet
	closed sync.WaitGroup
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
	Held     bool   `json:"held,omitempty"`
}

type contents struct {
	Version int      `json:"version"`
	Devices []record `json:"devices"`
	Health  health   `json:"health"`
}

// OpenStore returns the store in a directory, which is made if it is missing. Whether it can be written shows later, and
// is logged: a daemon without its state directory still serves.
func OpenStore(dir string, log *slog.Logger) *Store {
	s := &Store{file: filepath.Join(dir, "identities.json"), log: log, latest: make(chan contents, 1)}
	s.closed.Go(s.writeAll)
	return s
}

// Close writes what is still to be written.
func (s *Store) Close() {
	close(s.latest)
	s.closed.Wait()
}

// load reads the file. One that is damaged is put aside, not overwritten.
func (s *Store) load() contents {
	text, err := os.ReadFile(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return contents{}
	}
	if err != nil {
		s.log.Error("identities not read", "err", err)
		return contents{}
	}
	c, err := decode(text)
	if err != nil {
		aside := s.file + ".damaged"
		err = fmt.Errorf("read %s: %w; it is kept as %s", s.file, err, aside)
		if renameErr := os.Rename(s.file, aside); renameErr != nil {
			err = fmt.Errorf("%w, or would be: %w", err, renameErr)
		}
		s.log.Error("identities not read", "err", err)
	}
	return c
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

// writeAll writes what is saved. What cannot be written is tried again, less and less often, until it can or something
// newer is saved.
func (s *Store) writeAll() {
	var unwritten *contents
	var complaint string
	pause := writeFirst
	for {
		var again <-chan time.Time
		if unwritten != nil {
			again = time.After(pause)
		}
		select {
		case c, ok := <-s.latest:
			if !ok {
				return // the attempt at what is unwritten has just been made
			}
			slices.SortFunc(c.Devices, func(a, b record) int { return strings.Compare(a.ID, b.ID) })
			unwritten, pause = &c, writeFirst
		case <-again:
			pause = min(2*pause, writeLast)
		}
		err := s.write(*unwritten)
		switch {
		case err == nil && complaint != "":
			s.log.Info("identities kept again")
			fallthrough
		case err == nil:
			unwritten, complaint = nil, ""
		case err.Error() != complaint:
			complaint = err.Error()
			s.log.Error("identities not kept", "err", err)
		}
	}
}

// write replaces the file: after a crash it is the old or the new one, whole.
func (s *Store) write(c contents) error {
	if err := os.MkdirAll(filepath.Dir(s.file), 0o755); err != nil {
		return err
	}
	next := s.file + ".new" // there is one daemon, and it writes one file at a time
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := c.encode(f); err != nil {
		return fmt.Errorf("encode the identities: %w", err)
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(next, s.file); err != nil {
		return err
	}
	return syncDir(filepath.Dir(s.file))
}

// encode writes the JSON of c with a line for each device, piece by piece: of thousands it is megabytes.
func (c contents) encode(w io.Writer) error {
	b := bufio.NewWriterSize(w, 64<<10)
	lines := json.NewEncoder(b)
	fmt.Fprintf(b, `{"version":%d,"health":`, c.Version)
	if err := lines.Encode(c.Health); err != nil {
		return err
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

// syncDir makes a rename in dir last.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// restore takes in the devices of the last run. They are in the offer from the start, Unhealthy until they are seen.
func (l *loop) restore() {
	defer l.restoreRemembered()
	if l.Store == nil {
		return
	}
	kept := l.Store.load()
	l.restoreHealth(kept.Health)
	for _, r := range kept.Devices {
		class := device.ClassNamed(r.Class)
		if class == nil || !l.configured(r.Resource) {
			continue
		}
		e := &entry{
			device: device.Device{
				ID: r.ID, Class: class, Model: r.Model, SysPath: r.SysPath, NUMANode: r.NUMANode,
			},
			resource: r.Resource,
			offered:  true,
			held:     r.Held,
			awaited:  r.Present && l.AfterBoot,
		}
		l.entries[r.ID] = e
		l.changed(e)
	}
}

// restoreRemembered takes in the devices that the kubelet knows and the store does not.
func (l *loop) restoreRemembered() {
	for _, r := range l.rules {
		for id, node := range l.Remembered[r.Resource] {
			if e := l.entries[id]; e != nil {
				e.held = true
				l.changed(e)
				continue
			}
			e := &entry{
				device:   device.Device{ID: id, Class: r.Class, NUMANode: node},
				resource: r.Resource, offered: true, held: true,
			}
			l.entries[id] = e
			l.changed(e)
		}
	}
}

func (l *loop) configured(resource string) bool {
	return slices.ContainsFunc(l.rules, func(r device.Rule) bool { return r.Resource == resource })
}

// saveLater has it saved soon. What changes until then is saved with it.
func (l *loop) saveLater() {
	if !l.saving {
		l.saving = true
		l.saveTimer.Reset(savePause)
	}
}

// save has the identities of all offered devices and what is known of the health of hardware written, if
// any of it has changed.
func (l *loop) save() {
	l.saving = false
	if l.Store == nil || !l.unsaved {
		return
	}
	l.unsaved = false
	records := make([]record, 0, len(l.entries))
	for _, e := range l.entries {
		if !e.offered {
			continue
		}
		records = append(records, record{
			ID: e.device.ID, Class: className(e.device), Resource: e.resource, Model: e.device.Model,
			SysPath: e.device.SysPath, NUMANode: e.device.NUMANode, Present: e.sighting != nil, Held: e.held,
		})
	}
	l.Store.save(contents{Version: storeVersion, Devices: records, Health: l.savedHealth()})
}
