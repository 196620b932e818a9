// SPDX-License-Identifier: Apache-2.0

// Command words prints the figures of the sentences in comments, README, docs and man pages, next to those of net/http and
// of modules in the module cache. With files as arguments, it prints the sentences in these files that count as hard.
package main

import (
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/metalplug/metalplug/integration/prose"
)

func main() {
	log.SetFlags(0)
	show := run
	if len(os.Args) > 1 {
		show = hard
	}
	if err := show(os.Stdout); err != nil {
		log.Fatalf("words: %v", err)
	}
}

// models are modules with good comments. A module that is not in the module cache is skipped.
var models = []string{"github.com/mdlayher/corerad", "github.com/prometheus/client_golang", "github.com/fsnotify/fsnotify"}

func run(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "sentences\topeners\tcolon, semicolon\tsomebody ...\tmean length\t  text")
	row := func(name string, f prose.Figures) {
		fmt.Fprintf(table, "%d\t%.2f %%\t%.1f %%\t%d\t%.1f\t  %s\n", f.Sentences, f.OpenerShare(), f.MarkShare(), f.Vague, f.MeanLength(), name)
	}
	for _, part := range []struct {
		name string
		keep func(string) bool
	}{
		{"comments of the product", prose.Product},
		{"comments of tests and integration", func(path string) bool { return !prose.Product(path) }},
	} {
		f, err := prose.Comments(".", part.keep)
		if err != nil {
			return err
		}
		row(part.name, f)
	}
	documents, err := prose.Documents(".")
	if err != nil {
		return err
	}
	for _, d := range documents {
		f, err := d.Measure(".")
		if err != nil {
			return err
		}
		row(d.Path, f)
	}
	if err := measureOthers(row); err != nil {
		return err
	}
	return table.Flush()
}

// hard prints the sentences of the given documents that have a bad opener, an inner mark or a vague word.
func hard(out io.Writer) error {
	documents, err := prose.Documents(".")
	if err != nil {
		return err
	}
	for _, d := range documents {
		if !slices.Contains(os.Args[1:], d.Path) {
			continue
		}
		page, err := os.ReadFile(d.Path)
		if err != nil {
			return err
		}
		for _, paragraph := range d.Split(string(page)) {
			for _, sentence := range prose.Sentences(paragraph) {
				if f := prose.Measure([]string{sentence}); f.Openers+f.Marks+f.Vague > 0 {
					fmt.Fprintf(out, "%s: %s\n", d.Path, sentence)
				}
			}
		}
	}
	return nil
}

// measureOthers measures texts outside this repository.
func measureOthers(row func(string, prose.Figures)) error {
	env, err := exec.Command("go", "env", "GOROOT", "GOMODCACHE").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	dirs := strings.Split(strings.TrimSpace(string(env)), "\n")
	roots := []string{filepath.Join(dirs[0], "src/net/http")}
	for _, m := range models {
		found, err := filepath.Glob(filepath.Join(dirs[1], m+"@*"))
		if err != nil {
			return fmt.Errorf("find %s: %w", m, err)
		}
		if len(found) > 0 {
			roots = append(roots, found[len(found)-1])
		}
	}
	for _, root := range roots {
		f, err := prose.Comments(root, func(path string) bool { return !strings.HasSuffix(path, "_test.go") })
		if err != nil {
			return err
		}
		row("comments of "+strings.TrimPrefix(strings.TrimPrefix(root, dirs[0]+"/src/"), dirs[1]+"/"), f)
	}
	return nil
}
