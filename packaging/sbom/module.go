// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// program is a program and how it was built.
type program struct {
	file string
	*buildinfo.BuildInfo
}

// module is a module that is part of a program.
type module struct {
	path, version, sum string
	licence            string // SPDX's name of it; NOASSERTION: not recognised
	texts              []string
}

// modules returns the modules that the programs are made of, but for ours, by path.
func modules(programs []program) []*module {
	all := make(map[string]*module)
	for _, p := range programs {
		for _, d := range p.Deps {
			if d.Replace != nil {
				d = d.Replace
			}
			all[d.Path] = &module{path: d.Path, version: d.Version, sum: d.Sum}
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *module) int { return cmp.Compare(a.path, b.path) })
}

// findLicences reads the licences of modules, which are in the module cache when the programs have been built here.
func findLicences(modules []*module) error {
	for _, m := range modules {
		dir, err := directory(m)
		if err != nil {
			return err
		}
		if m.texts, err = texts(dir); err != nil {
			return err
		}
		if len(m.texts) == 0 {
			return fmt.Errorf("read the licence of %s@%s: there is none in %s", m.path, m.version, dir)
		}
		m.licence = recognise(m.texts)
	}
	return nil
}

// directory returns where the module is. "go mod download" fetches nothing that is there already.
func directory(m *module) (string, error) {
	out, err := exec.Command("go", "mod", "download", "-json", m.path+"@"+m.version).Output()
	if err != nil {
		return "", fmt.Errorf("find the module %s@%s: %w", m.path, m.version, err)
	}
	var found struct{ Dir, Sum string }
	if err := json.Unmarshal(out, &found); err != nil {
		return "", fmt.Errorf("find the module %s@%s: %w", m.path, m.version, err)
	}
	if found.Sum != m.sum {
		return "", fmt.Errorf("find the module %s@%s: its sum is %s, in the program it is %s", m.path, m.version, found.Sum, m.sum)
	}
	return found.Dir, nil
}

// texts reads the files of a directory in which licences and notices usually are.
func texts(dir string) ([]string, error) {
	var all []string
	for _, pattern := range []string{"LICENSE*", "LICENCE*", "COPYING*", "NOTICE*"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("read a licence: %w", err)
			}
			all = append(all, string(text))
		}
	}
	return all, nil
}

// marks are sentences that only one licence has, in the order in which they are looked for.
var marks = []struct{ licence, sentence string }{
	{"Apache-2.0", "Apache License Version 2.0, January 2004"},
	{"MPL-2.0", "Mozilla Public License Version 2.0"},
	{"BSD-3-Clause", "may be used to endorse or promote products derived from this software without specific prior written permission"},
	{"BSD-2-Clause", "Redistributions in binary form must reproduce the above copyright notice"},
	{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy of this software"},
}

// recognise returns which licences the texts are, as an SPDX expression.
func recognise(texts []string) string {
	var found []string
	for _, text := range texts {
		words := strings.Join(strings.Fields(text), " ")
		for _, m := range marks {
			if strings.Contains(strings.ToLower(words), strings.ToLower(m.sentence)) {
				found = append(found, m.licence)
				break
			}
		}
	}
	slices.Sort(found)
	if found = slices.Compact(found); len(found) == 0 {
		return "NOASSERTION"
	}
	return strings.Join(found, " AND ")
}

// writeNotices prints the licences of all modules.
func writeNotices(w io.Writer, modules []*module) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "The programs of metalplug contain the modules below, under these licences, and the runtime and standard library\n"+
		"of Go, whose licence is that of golang.org/x/sys.\n")
	for _, m := range modules {
		fmt.Fprintf(&out, "\n%s\n%s %s: %s\n%s\n", strings.Repeat("=", 80), m.path, m.version, m.licence, strings.Repeat("=", 80))
		for _, text := range m.texts {
			fmt.Fprintf(&out, "\n%s\n", strings.TrimRight(text, "\n"))
		}
	}
	if len(modules) == 0 {
		return errors.New("the programs contain no module")
	}
	_, err := w.Write(out.Bytes())
	return err
}
