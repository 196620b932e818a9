// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/prose"
)

// Bars for what people read. net/http has 0.2 % openers and 7 % colons and semicolons, as "make words" prints.
const (
	readmeLines = 150
	readmeBytes = 9000
	openers     = 0.2 // percent of the sentences
	marks       = 15  // percent of the sentences
	vagueWords  = 20  // in README, docs and man pages
	daemonMean  = 20  // words in a sentence of metalplugd(8)
)

// Limits for comments. They are stricter than the bars of the documents, which are 0.2 and 15 %.
const (
	commentOpeners = 0.1
	commentMarks   = 4
	commentVague   = 5
)

func TestReadmeIsShort(t *testing.T) {
	readme := text(t, "README.md")
	if n := strings.Count(readme, "\n"); n > readmeLines || len(readme) > readmeBytes {
		t.Errorf("README.md has %d lines and %d bytes, at most %d and %d", n, len(readme), readmeLines, readmeBytes)
	}
}

func TestSentencesOfDocuments(t *testing.T) {
	documents, err := prose.Documents("../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(documents) < 15 {
		t.Fatalf("%d documents: this test looks at the wrong place", len(documents))
	}
	vague := 0
	for _, d := range documents {
		f, err := d.Measure("../..")
		if err != nil {
			t.Fatal(err)
		}
		if d.Path == "docs/lease.md" { // written by a test of daemon/lease, from a table whose cells are lists
			continue
		}
		checkSentences(t, d.Path, f, openers, marks)
		if d.Path == "packaging/man/metalplugd.8" && f.MeanLength() > daemonMean {
			t.Errorf("%s has %.1f words in a sentence, at most %d", d.Path, f.MeanLength(), daemonMean)
		}
		vague += f.Vague
	}
	if vague >= vagueWords {
		t.Errorf("the documents have %d of somebody, nobody, whoever and whatever, fewer than %d", vague, vagueWords)
	}
}

func TestSentencesOfComments(t *testing.T) {
	for _, part := range []struct {
		name string
		keep func(string) bool
	}{
		{"the product", prose.Product},
		{"tests and integration", func(path string) bool { return !prose.Product(path) }},
	} {
		f, err := prose.Comments("../..", part.keep)
		if err != nil {
			t.Fatal(err)
		}
		checkSentences(t, part.name, f, commentOpeners, commentMarks)
		if f.Vague > commentVague {
			t.Errorf("%s: %d of somebody, nobody, whoever and whatever, at most %d", part.name, f.Vague, commentVague)
		}
	}
}

func checkSentences(t *testing.T, name string, f prose.Figures, openers, marks float64) {
	t.Helper()
	t.Logf("%s: %d sentences, %.2f %% openers, %.1f %% marks, %.1f words", name, f.Sentences, f.OpenerShare(), f.MarkShare(), f.MeanLength())
	if f.Sentences < 3 {
		t.Errorf("%s has %d sentences: this test looks at the wrong place", name, f.Sentences)
	}
	if f.OpenerShare() > openers {
		t.Errorf("%s: %.2f %% of the sentences begin with What, Who, Whoever, That or Of, at most %.1f %%", name, f.OpenerShare(), openers)
	}
	if f.MarkShare() > marks {
		t.Errorf("%s: %.1f %% of the sentences have an inner colon or semicolon, at most %.1f %%", name, f.MarkShare(), marks)
	}
}
