// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Where returns where a key of a resource is written, as "FILE:LINE" with an absolute FILE, and for a key that is not
// written the table that it would be in: "name", or "match" or "exclude" and below them a property, as in "match.PCI_ID".
// Of several files it is the one whose value holds. It is empty for a built-in resource that no file names.
func (c Config) Where(resource, key string) string {
	t := c.places[resource]
	if t == nil {
		return ""
	}
	table, property, below := strings.Cut(key, ".")
	l := t.place(table)
	path := l.at(table)
	if below {
		path = append(path, property)
	}
	name, err := filepath.Abs(l.file.name)
	if err != nil {
		name = l.file.name
	}
	return fmt.Sprintf("%s:%d", name, l.file.lines.line(path))
}
