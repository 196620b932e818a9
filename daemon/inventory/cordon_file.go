// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/json"
	"errors"
	"io"
)

// cordonFile is the name of the file beside the identities: a map from the ID of a device to its [Cordon].
const cordonFile = "cordons.json"

// UnmarshalJSON reads a cordon; what was only a reason, as the first versions wrote it, is one of nobody's.
func (c *Cordon) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '"' {
		*c = Cordon{}
		return json.Unmarshal(text, &c.Reason)
	}
	type plain Cordon // without this method
	return json.Unmarshal(text, (*plain)(c))
}

// cordons reads the file.
func (s *Store) cordons() (cordons map[string]Cordon, err error) {
	err = take(s.keptCordons.path, func(text []byte) error {
		if err := json.Unmarshal(text, &cordons); err != nil {
			return err
		}
		if cordons == nil { // JSON's null, which is never written
			return errors.New("there is no map in it")
		}
		return nil
	})
	if err == nil {
		s.keptCordons.remember()
	}
	return cordons, err
}

// UnkeptCordons returns why cordons that hold cannot be written; nil: they are. It does not block.
func (s *Store) UnkeptCordons() error {
	if err := s.unkeptCordons.Load(); err != nil {
		return *err
	}
	return nil
}

// doubtCordons notes, after keepCordons has failed, that the file may have what does not hold: it is to be written again.
func (s *Store) doubtCordons(err error) {
	if errors.As(err, new(inDoubt)) {
		s.unkeptCordons.Store(&err)
	}
}

// secureCordons keeps cordons that hold already, and notes if they cannot be.
func (s *Store) secureCordons(cordons map[string]Cordon) error {
	err := s.keepCordons(cordons)
	if err != nil {
		s.unkeptCordons.Store(&err)
	}
	return err
}

// keepCordons replaces the file and returns once it is on disk.
func (s *Store) keepCordons(cordons map[string]Cordon) error {
	err := s.replace(&s.keptCordons, func(w io.Writer) error {
		lines := json.NewEncoder(w)
		lines.SetIndent("", "  ")
		return lines.Encode(cordons)
	})
	if err == nil {
		s.unkeptCordons.Store(nil)
	}
	return err
}
