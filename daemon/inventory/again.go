// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Rewrite has those files of the store written again that were removed or replaced since they were written, and returns their
// names; what is in their place is kept beside. An error says what cannot be written and what is to be done by hand therefore,
// or is that of ctx.
func (i *Inventory) Rewrite(ctx context.Context) (files []string, err error) {
	if i.Store == nil {
		return nil, nil
	}
	written, unkept := i.rewriteIdentities(ctx)
	if written {
		files = append(files, identityFile)
	}
	if ctx.Err() != nil {
		return files, ctx.Err()
	}
	i.cordoning.Lock() // else those of a moment ago would be written
	defer i.cordoning.Unlock()
	var cordons map[string]Cordon
	if err := i.ask(ctx, func(l *loop) { cordons = l.cordons }); err != nil {
		return files, err
	}
	written, err = i.Store.rewriteCordons(cordons)
	if written {
		files = append(files, cordonFile)
	}
	switch {
	case unkept == nil:
		return files, err
	case err == nil:
		return files, unkept
	default:
		return files, fmt.Errorf("%w; %w", unkept, err) // in one line
	}
}

// rewriteIdentities keeps the identities if their file was there and is not. The error names what a restart would forget.
func (i *Inventory) rewriteIdentities(ctx context.Context) (written bool, err error) {
	if !i.Store.kept.lost() {
		return false, nil
	}
	var dirty []string
	if err := i.ask(ctx, func(l *loop) { l.unsaved = true; l.save(); dirty = l.dirtyDisks() }); err != nil {
		return false, err
	}
	select {
	case err = <-i.Store.flush():
	case <-ctx.Done(): // the disk may not answer
		err = ctx.Err()
	}
	switch {
	case err == nil:
		return true, nil
	case len(dirty) == 0:
		return false, fmt.Errorf("keep identities: %w", err)
	default:
		return false, fmt.Errorf("keep identities: %w: until they are, a restart forgets that these have to be erased, which is to be done by hand then: %s",
			err, strings.Join(dirty, ", "))
	}
}

// dirtyDisks returns the IDs of what has to be erased before it is offered again, in order.
func (l *loop) dirtyDisks() (ids []string) {
	for id, e := range l.entries {
		if e.dirty {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// saveRemoved has those files written when the loop has ended that were removed at the last moment, or could not be written
// again until now.
func (l *loop) saveRemoved() {
	if l.Store == nil {
		return
	}
	l.unsaved = l.unsaved || l.Store.kept.lost()
	l.cordoning.Lock() // for the loop has ended, nobody holds it who waits for that
	defer l.cordoning.Unlock()
	if _, err := l.Store.rewriteCordons(l.cordons); err != nil {
		l.Log.Error("cordons not kept", "err", err)
	}
}

// rewriteCordons keeps the cordons if their file was there and is not, or may not be what it should be.
func (s *Store) rewriteCordons(cordons map[string]Cordon) (written bool, err error) {
	lost := s.keptCordons.lost() || len(cordons) > 0 && s.keptCordons.missing()
	if !lost && s.UnkeptCordons() == nil {
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
	entries, _ := os.ReadDir(filepath.Dir(s.kept.path)) // what cannot be listed was never written to
	for _, e := range entries {
		for _, own := range []string{identityFile, cordonFile, "audit.jsonl"} {
			if strings.HasPrefix(e.Name(), own) && !strings.HasSuffix(e.Name(), Unfinished) {
				return fmt.Errorf("it was removed, for %s is there: what was left on any disk is not known any more", e.Name())
			}
		}
	}
	return nil
}
