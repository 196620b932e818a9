// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// TestStoreThatIsAnothers: what has become another's is not written to, whatever it is that would be.
func TestStoreThatIsAnothers(t *testing.T) {
	dir, others := t.TempDir(), errors.New("it is another's")
	s := OpenStore(dir, slog.New(slog.DiscardHandler))
	defer s.Close()
	s.Owned = func() error { return others }
	s.save(contents{Version: storeVersion})
	if err := <-s.flush(); !errors.Is(err, others) {
		t.Errorf("identities: %v", err)
	}
	if err := s.keepCordons(map[string]Cordon{"a": {}}); !errors.Is(err, others) {
		t.Errorf("cordons: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// A file that cannot be replaced is as good as replaced where it says the same already, and only there.
func TestStoreThatCannotBeWrittenHasWhatItHas(t *testing.T) {
	dir := t.TempDir()
	s := OpenStore(dir, slog.New(slog.DiscardHandler))
	defer s.Close()
	keep := func(ids ...string) error {
		c := contents{Version: storeVersion}
		for _, id := range ids {
			c.Devices = append(c.Devices, record{ID: id})
		}
		s.save(c)
		return <-s.flush()
	}
	if err := keep("a", "b"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "identities.json.new", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := keep("b", "a"); err != nil {
		t.Errorf("the same is not kept: %v", err)
	}
	for _, ids := range [][]string{{"a"}, {"a", "c"}, {"a", "b", "c"}} {
		if err := keep(ids...); err == nil || s.Unkept() == nil {
			t.Errorf("%v is kept in place of a and b: %v, %v", ids, err, s.Unkept())
		}
	}
	if err := os.RemoveAll(filepath.Join(dir, "identities.json.new")); err != nil {
		t.Fatal(err)
	}
	if err := keep("a", "c"); err != nil || s.Unkept() != nil {
		t.Errorf("with room again: %v, %v", err, s.Unkept())
	}
}

// TestWhatMayNotLastIsNotKept: what was put in the place of the file, and may be gone after a crash, is kept once it was put
// there anew. Linux says only once that it may be: the sync after that succeeds.
func TestWhatMayNotLastIsNotKept(t *testing.T) {
	dir := t.TempDir()
	fails := false
	s := newStore(dir, slog.New(slog.DiscardHandler))
	s.syncDir = func(dir string) error {
		if fails {
			fails = false
			return errors.New("input/output error")
		}
		return syncDir(dir)
	}
	inTheWay := filepath.Join(dir, "identities.json.new", "in the way")
	for n, step := range []struct{ full, fails, kept bool }{
		{false, true, false},
		{true, false, false}, // though it is there
		{true, false, false},
		{false, false, true},
		{true, false, true},
		{true, true, false}, // now it is that sync which fails, as of what the last daemon has left
		{true, false, false},
		{false, false, true},
	} {
		var err error
		if step.full {
			err = os.MkdirAll(inTheWay, 0o700)
		} else {
			err = os.RemoveAll(filepath.Dir(inTheWay))
		}
		if err != nil {
			t.Fatal(err)
		}
		fails = step.fails
		if err := s.write(&contents{Version: storeVersion, Devices: []record{{ID: "a"}}}); (err == nil) != step.kept {
			t.Errorf("step %d: %v, want it kept: %t", n, err, step.kept)
		}
		if !(&Inventory{Options: Options{Store: s}}).Left(filepath.Join(dir, identityFile)) {
			t.Errorf("step %d: what was written is not known again", n)
		}
	}
}

// TestCordonsInDoubt: an uncordon that has failed does not come to hold by a restart, though it may be on disk.
func TestCordonsInDoubt(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, cordonFile)
	broken := false
	s := OpenStore(dir, slog.New(slog.DiscardHandler))
	defer s.Close()
	s.syncDir = func(dir string) error {
		if broken {
			return errors.New("input/output error")
		}
		return syncDir(dir)
	}
	held := map[string]Cordon{"a": {Reason: "loose"}}
	if err := s.keepCordons(held); err != nil {
		t.Fatal(err)
	}
	broken = true
	err := s.keepCordons(map[string]Cordon{})
	s.doubtCordons(err)
	if err == nil || s.UnkeptCordons() == nil {
		t.Errorf("error %v, told of %v", err, s.UnkeptCordons())
	}
	broken = false
	if written, err := s.rewriteCordons(held); err != nil || !written || s.UnkeptCordons() != nil {
		t.Errorf("written again: %v, %v", written, err)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "loose") {
		t.Errorf("%s, %v", text, err)
	}
}

// TestNoCordonsAreKeptToo: their file, when it is removed, would be taken for one that had some.
func TestNoCordonsAreKeptToo(t *testing.T) {
	dir := t.TempDir()
	s := OpenStore(dir, slog.New(slog.DiscardHandler))
	defer s.Close()
	if written, err := s.rewriteCordons(nil); err != nil || written {
		t.Errorf("one that never was there: %v, %v", written, err)
	}
	if err := errors.Join(s.keepCordons(map[string]Cordon{}), os.Remove(filepath.Join(dir, cordonFile))); err != nil {
		t.Fatal(err)
	}
	if written, err := s.rewriteCordons(nil); err != nil || !written {
		t.Errorf("written again: %v, %v", written, err)
	}
	if cordons, err := s.cordons(); err != nil || len(cordons) > 0 {
		t.Errorf("%v, %v", cordons, err)
	}
}

// TestWritingIsNotLosing: while a file is replaced by what is written, nothing is lost.
func TestWritingIsNotLosing(t *testing.T) {
	s := newStore(t.TempDir(), slog.New(slog.DiscardHandler))
	write := func() {
		if err := s.write(&contents{Version: storeVersion}); err != nil {
			t.Error(err)
		}
	}
	write()
	var over atomic.Bool
	var looker sync.WaitGroup
	looker.Go(func() {
		for !over.Load() {
			if s.kept.lost() {
				t.Error("it is lost")
				return
			}
		}
	})
	for range 500 {
		write()
	}
	over.Store(true)
	looker.Wait()
}
