// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
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
func (s *Store) cordons() (map[string]Cordon, error) {
	file := filepath.Join(filepath.Dir(s.file), cordonFile)
	text, err := read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var cordons map[string]Cordon
	if err := json.Unmarshal(text, &cordons); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if cordons == nil { // JSON's null, which is never written
		return nil, fmt.Errorf("read %s: there is no map in it", file)
	}
	return cordons, nil
}

// replaceCordons replaces a file that cannot be read, which it keeps beside. After an error either may be in its place.
func (s *Store) replaceCordons(cordons map[string]Cordon) (aside string, err error) {
	file := filepath.Join(filepath.Dir(s.file), cordonFile)
	if aside, err = keepBeside(file); err != nil {
		return "", err
	}
	return aside, s.keepCordons(cordons)
}

// keepCordons replaces the file and returns once it is on disk.
func (s *Store) keepCordons(cordons map[string]Cordon) error {
	return s.replace(filepath.Join(filepath.Dir(s.file), cordonFile), func(w io.Writer) error {
		lines := json.NewEncoder(w)
		lines.SetIndent("", "  ")
		return lines.Encode(cordons)
	})
}
