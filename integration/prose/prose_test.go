// SPDX-License-Identifier: Apache-2.0

package prose_test

import (
	"os"
	"testing"

	"github.com/metalplug/metalplug/integration/leak"
	"github.com/metalplug/metalplug/integration/prose"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

func TestMeasure(t *testing.T) {
	for text, want := range map[string]prose.Figures{
		"The daemon reads a disk. It offers the disk, e.g. to a pod.": {Sentences: 2, Words: 13},
		"What is lost, is lost.":                     {Sentences: 1, Words: 5, Openers: 1},
		"Whatever happens: nobody knows. k3s works.": {Sentences: 1, Words: 4, Marks: 1, Vague: 2}, // "k3s works." is too short
		"The commands are:":                          {Sentences: 1, Words: 3},
	} {
		if got := prose.Measure([]string{text}); got != want {
			t.Errorf("%s\n%+v, want %+v", text, got, want)
		}
	}
}

func TestSplit(t *testing.T) {
	const comment = "// SPDX-License-Identifier: X\n\n// Package x does: `a; b`.\n//\n//\tcode: here\npackage x\n\n//go:generate y: z\n"
	paragraphs, err := prose.Go("x.go", []byte(comment))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		got  []string
		want int
	}{
		"Go":       {paragraphs, 1},
		"Markdown": {prose.Markdown("# Title: x\n\nA [link; x](y).\n- an item\n\n```\ncode: x\n```\n| a | b |\n|---|---|\n"), 4},
		"Man":      {prose.Man(".Sh A\nText with\n.Pa /a:b ,\nand more.\n.Bd -literal\ncode: x\n.Ed\n.Bl\n.It x Ta cell text\n.El\n"), 2},
		"TOML":     {prose.TOML("# title\n#\n# ---- Head ----\n# Text.\n#key = 1\n# More.\n#     code: x\n"), 2},
	} {
		if len(c.got) != c.want {
			t.Errorf("%s: %q, want %d paragraphs", name, c.got, c.want)
		}
	}
}
