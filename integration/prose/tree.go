// SPDX-License-Identifier: Apache-2.0

package prose

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Comments returns the figures of the comments in all Go files below root for which keep returns true. keep gets the
// path relative to root. It omits hidden directories, testdata and vendor.
func Comments(root string, keep func(path string) bool) (Figures, error) {
	var f Figures
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() && name != root && (strings.HasPrefix(base, ".") || base == "testdata" || base == "vendor") {
			return fs.SkipDir
		}
		path, err := filepath.Rel(root, name)
		if err != nil || entry.IsDir() || !strings.HasSuffix(base, ".go") || !keep(path) {
			return err
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		paragraphs, err := Go(name, source)
		f.Add(Measure(paragraphs))
		return err
	})
	if err != nil {
		return f, fmt.Errorf("measure comments: %w", err)
	}
	return f, nil
}

// Product reports whether a Go file of this repository is part of the product. Tests and their support packages are
// not.
func Product(path string) bool {
	return !strings.HasSuffix(path, "_test.go") && !strings.HasPrefix(path, "integration"+string(filepath.Separator))
}

// Document is a page that people read.
type Document struct {
	Path  string // path relative to the root of the repository
	Split func(page string) []string
}

// Documents returns README, the pages of docs and the man pages.
func Documents(root string) ([]Document, error) {
	all := []Document{{"README.md", Markdown}, {"daemon/config/metalplug.toml", TOML}}
	for _, kind := range []struct {
		pattern string
		split   func(string) []string
	}{{"docs/*.md", Markdown}, {"packaging/man/*.[1-9]*", Man}} {
		names, err := filepath.Glob(filepath.Join(root, kind.pattern))
		if err != nil {
			return nil, fmt.Errorf("list documents: %w", err)
		}
		for _, name := range names {
			path, err := filepath.Rel(root, name)
			if err != nil {
				return nil, fmt.Errorf("list documents: %w", err)
			}
			all = append(all, Document{path, kind.split})
		}
	}
	return all, nil
}

// Measure returns the figures of a document in the repository at root.
func (d Document) Measure(root string) (Figures, error) {
	page, err := os.ReadFile(filepath.Join(root, d.Path))
	if err != nil {
		return Figures{}, fmt.Errorf("measure document: %w", err)
	}
	return Measure(d.Split(string(page))), nil
}
