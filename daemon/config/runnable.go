// SPDX-License-Identifier: Apache-2.0

package config

import "slices"

// LoadRunnable is [Load] for whoever wants to run what is loaded: what a sound configuration asks for and this version
// cannot do is a problem as well. A disk that is to be erased must not be handed on as it is.
func LoadRunnable(file string) (Config, error) { return load(file, file == DefaultFile, true) }

// refuse notes what this version cannot do for a resource. It holds unless a later file replaces the resource.
func (c *Config) refuse(r placed) {
	var all Problems
	note := func(table, key, value string) {
		all = append(all, r.at.file.problem(append(r.at.at(table), key), "%s: this version cannot do that yet", quoted(value)))
	}
	if m := r.Reset.Method; m != Auto && m != None {
		note("reset", "method", m)
	}
	if r.Reset.Scrub != None {
		note("reset", "scrub", r.Reset.Scrub)
	}
	for _, unit := range []struct{ key, name string }{
		{"init", r.Units.Init}, {"start", r.Units.Start}, {"release", r.Units.Release},
	} {
		if unit.name != "" {
			note("units", unit.key, unit.name)
		}
	}
	delete(c.beyond, r.Name)
	if len(all) > 0 {
		if c.beyond == nil {
			c.beyond = make(map[string]Problems)
		}
		c.beyond[r.Name] = all
	}
}

// unsupported returns what this version cannot do for the resources as they are once all files have been read.
func (c *Config) unsupported() Problems {
	var all Problems
	for _, r := range c.Resources {
		all = append(all, c.beyond[r.Name]...)
	}
	return all
}

// sort brings problems into the order in which the files were read, and by line.
func (p Problems) sort(files []string) {
	slices.SortStableFunc(p, func(a, b Problem) int {
		if by := slices.Index(files, a.File) - slices.Index(files, b.File); by != 0 {
			return by
		}
		return a.Line - b.Line
	})
}
