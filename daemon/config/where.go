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

// note notes where a resource is written, in place of an earlier one of that name.
func (c *Config) note(r placed) {
	if c.places == nil {
		c.places = make(map[string]place)
	}
	c.places[r.Name] = place{file: r.at.file.name, lines: r.at.file.lines, path: r.at.path}
}

// Where returns where a key of a resource is written, as "FILE:LINE" with an absolute FILE, and for a key that is not
// written the table that it would be in: "name", or "match" or "exclude" and below them a property, as in "match.PCI_ID".
// It is empty for a default resource, which is written nowhere.
func (c Config) Where(resource, key string) string {
	p, ok := c.places[resource]
	if !ok {
		return ""
	}
	table, property, below := strings.Cut(key, ".")
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
