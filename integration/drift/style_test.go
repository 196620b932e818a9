// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Limits for the shipped code. Code that exceeds a limit usually combines two things in one place.
const (
	fileLines      = 500
	functionLines  = 70
	functionMedian = 12
	functionP90    = 40
)

// source is a parsed file of the shipped code.
type source struct {
	name string
	*ast.File
	lines func(ast.Node) int
}

// goFiles returns the names of all Go files of this repository. It skips files that another process creates and removes
// during the walk.
func goFiles(t *testing.T) (names []string) {
	t.Helper()
	err := filepath.WalkDir("../..", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(name, "../../."):
			return fs.SkipDir
		case !entry.IsDir() && strings.HasSuffix(name, ".go"):
			names = append(names, name)
		}
		return nil
	})
	if err != nil || len(names) == 0 {
		t.Fatalf("look for the Go files: %d, %v", len(names), err)
	}
	return names
}

// sources parses all files of this module except tests and integration tests.
func sources(t *testing.T) []source {
	t.Helper()
	files := token.NewFileSet()
	var all []source
	for _, name := range goFiles(t) {
		if strings.HasSuffix(name, "_test.go") || strings.Contains(name, "/integration/") {
			continue
		}
		parsed, err := parser.ParseFile(files, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, source{strings.TrimPrefix(name, "../../"), parsed, func(n ast.Node) int {
			return files.Position(n.End()).Line - files.Position(n.Pos()).Line + 1
		}})
	}
	if len(all) == 0 {
		t.Fatal("there are no sources")
	}
	return all
}

func TestFilesAndFunctionsAreShort(t *testing.T) {
	var lengths []int
	for _, s := range sources(t) {
		if n := s.lines(s.File); n > fileLines {
			t.Errorf("%s has %d lines, at most %d", s.name, n, fileLines)
		}
		for _, d := range s.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			n := s.lines(f)
			lengths = append(lengths, n)
			if n > functionLines {
				t.Errorf("%s: %s has %d lines, at most %d", s.name, f.Name.Name, n, functionLines)
			}
		}
	}
	slices.Sort(lengths)
	median, p90 := lengths[len(lengths)/2], lengths[len(lengths)*9/10]
	t.Logf("%d functions, median %d lines, 90th percentile %d, longest %d", len(lengths), median, p90, lengths[len(lengths)-1])
	if median > functionMedian || p90 > functionP90 {
		t.Errorf("functions have a median of %d lines and a 90th percentile of %d; at most %d and %d",
			median, p90, functionMedian, functionP90)
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	for _, s := range sources(t) {
		for _, d := range s.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil {
					t.Errorf("%s: %s has no comment", s.name, d.Name.Name)
				}
				if d.Name.Name == "init" && d.Recv == nil {
					t.Errorf("%s: init runs behind the reader's back", s.name)
				}
			case *ast.GenDecl:
				undocumented(t, s.name, d)
			}
		}
	}
}

// undocumented reports the exported types, constants and variables of a declaration that have no comment.
func undocumented(t *testing.T, file string, d *ast.GenDecl) {
	t.Helper()
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if spec.Name.IsExported() && d.Doc == nil && spec.Doc == nil {
				t.Errorf("%s: %s has no comment", file, spec.Name.Name)
			}
		case *ast.ValueSpec:
			for _, name := range spec.Names {
				if name.IsExported() && d.Doc == nil && spec.Doc == nil && spec.Comment == nil {
					t.Errorf("%s: %s has no comment", file, name.Name)
				}
			}
		}
	}
}

// TestErrorTexts checks that an error has the form "verb object: cause". It must not add that something failed.
func TestErrorTexts(t *testing.T) {
	banned := []string{"failed to", "unable to", "error while", "error when"}
	for _, s := range sources(t) {
		ast.Inspect(s.File, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			for _, phrase := range banned {
				if strings.Contains(strings.ToLower(literal.Value), phrase) {
					t.Errorf("%s: %s says %q", s.name, literal.Value, phrase)
				}
			}
			return true
		})
	}
}

// bannedNames are words that do not describe the purpose of a thing.
var bannedNames = []string{"manager", "helper", "util", "utils", "common", "provider", "factory", "impl"}

func TestDescriptiveNames(t *testing.T) {
	for _, s := range sources(t) {
		base := strings.TrimSuffix(filepath.Base(s.name), ".go")
		if slices.Contains(bannedNames, base) || base == "types" {
			t.Errorf("%s: the name says nothing about what is in it", s.name)
		}
		for _, d := range s.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && slices.Contains(bannedNames, strings.ToLower(f.Name.Name)) {
				t.Errorf("%s: the name %s says nothing", s.name, f.Name.Name)
			}
		}
	}
}
