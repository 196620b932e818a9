// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// place is where a resource is written. It is no part of the [Resource]: one that has only moved to another line has not
// changed.
type place struct {
	file  string
	lines lineIndex
	path  toml.Key
}

// note notes where a resource is written.
func (c *Config) note(name string, t *table) {
	if c.places == nil {
		c.places = make(map[string][]place)
	}
	for _, l := range t.layers {
		if l.file != nil {
			c.places[name] = append(c.places[name], place{file: l.file.name, lines: l.file.lines, path: l.path})
		}
	}
}

// Where returns where a key of a resource is written, as "FILE:LINE" with an absolute FILE, and for a key that is not
// written the table that it would be in: "name", or "match" or "exclude" and below them a property, as in "match.PCI_ID".
// Of several files it is the one whose value holds. It is empty for a built-in resource that no file names.
func (c Config) Where(resource, key string) string {
	places := c.places[resource]
	if len(places) == 0 {
		return ""
	}
	table, property, below := strings.Cut(key, ".")
	p := places[len(places)-1]
	for _, written := range slices.Backward(places) {
		if _, ok := written.lines[append(slices.Clone(written.path), table).String()]; ok {
			p = written
			break
		}
	}
	path := append(slices.Clone(p.path), table)
	if below {
		path = append(path, property)
	}
	file, err := filepath.Abs(p.file)
	if err != nil {
		file = p.file
	}
	return fmt.Sprintf("%s:%d", file, p.lines.line(path))
}
