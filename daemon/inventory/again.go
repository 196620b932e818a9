// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Rewrite has those files of the store written again that were removed since they were written, and returns their names. An
// error is that of the cordons, or of ctx; about the identities [Store.Unkept] tells.
func (i *Inventory) Rewrite(ctx context.Context) (files []string, err error) {
	if i.Store == nil {
		return nil, nil
	}
	if i.Store.lost() {
		if err := i.ask(ctx, func(l *loop) { l.unsaved = true; l.save() }); err != nil {
			return nil, err
		}
		select {
		case err := <-i.Store.flush():
			if err == nil {
				files = append(files, identityFile)
			}
		case <-ctx.Done(): // the disk may not answer
			return nil, ctx.Err()
		}
	}
	i.cordoning.Lock() // else those of a moment ago would be written
	defer i.cordoning.Unlock()
	var cordons map[string]Cordon
	if err := i.ask(ctx, func(l *loop) { cordons = l.cordons }); err != nil {
		return files, err
	}
	written, err := i.Store.rewriteCordons(cordons)
	if written {
		files = append(files, cordonFile)
	}
	return files, err
}

// saveRemoved has those files written when the loop has ended that were removed at the last moment, or could not be written
// again until now.
func (l *loop) saveRemoved() {
	if l.Store == nil {
		return
	}
	l.unsaved = l.unsaved || l.Store.lost()
	l.cordoning.Lock() // for the loop has ended, nobody holds it who waits for that
	defer l.cordoning.Unlock()
	if _, err := l.Store.rewriteCordons(l.cordons); err != nil {
		l.Log.Error("cordons not kept", "err", err)
	}
}

// lost tells whether the identities were kept in a file that is there no more.
func (s *Store) lost() bool { return s.kept.Load() && s.lacks(identityFile) }

// lacks tells whether there is no file of that name in the directory.
func (s *Store) lacks(name string) bool {
	_, err := os.Lstat(filepath.Join(filepath.Dir(s.file), name))
	return errors.Is(err, fs.ErrNotExist)
}

// rewriteCordons keeps the cordons if their file was there and is not, or may not be what it should be.
func (s *Store) rewriteCordons(cordons map[string]Cordon) (written bool, err error) {
	missing := s.lacks(cordonFile) && (s.keptCordons.Load() || len(cordons) > 0)
	if !missing && s.UnkeptCordons() == nil {
		return false, nil
	}
	if cordons == nil {
		cordons = make(map[string]Cordon)
	}
	err = s.secureCordons(cordons)
	switch {
	case err == nil:
		return true, nil
	case len(cordons) == 0:
		return false, fmt.Errorf("keep that no device is cordoned: %w: until that is kept, see after a restart which are", err)
	}
	ids := strings.Join(slices.Sorted(maps.Keys(cordons)), ", ")
	return false, fmt.Errorf("keep cordons: %w: until they are, cordon these again after a restart: %s", err, ids)
}

// begun returns an error that names files beside a missing one with the identities: they were kept once, and are lost. What a
// first start had not finished when it ended says nothing.
func (s *Store) begun() error {
	entries, _ := os.ReadDir(filepath.Dir(s.file)) // what cannot be listed was never written to
	for _, e := range entries {
		for _, own := range []string{identityFile, cordonFile, "audit.jsonl"} {
			if strings.HasPrefix(e.Name(), own) && !strings.HasSuffix(e.Name(), Unfinished) {
				return fmt.Errorf("it was removed, for %s is there: what was left on any disk is not known any more", e.Name())
			}
		}
	}
	return nil
}
