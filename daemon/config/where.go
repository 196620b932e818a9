// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Where returns the position of a resource's key as "FILE:LINE". The path FILE is absolute. For a missing key, Where returns the
// position of the table that would contain the key. The parameter key is "name", "match.PROPERTY" or "exclude.PROPERTY". If
// several files set the key, Where returns the position of the value that applies. For a built-in resource that no file names,
// Where returns "".
func (c Config) Where(resource, key string) string {
	t := c.places[resource]
	if t == nil {
		return ""
	}
	table, property, below := strings.Cut(key, ".")
	p := t.place(table)
	if below {
		p = p.child(property)
	}
	where := p.problem("")
	if name, err := filepath.Abs(where.File); err == nil {
		where.File = name
	}
	return fmt.Sprintf("%s:%d", where.File, where.Line)
}
