// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// Budgets for the whole of the code.
const (
	fileMean     = 150 // lines of a shipped file
	commentsMin  = 15  // percent of the lines of shipped code that are not blank
	commentsMax  = 22
	testsToCode  = 1.0 // lines of tests to lines of shipped code
	integrations = "integration/"
)

// count is what the lines of Go files are.
type count struct{ files, lines, blank, comments int }

func (c *count) add(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	c.files++
	for line := range strings.Lines(string(text)) {
		c.lines++
		if strings.TrimSpace(line) == "" {
			c.blank++
		}
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range parsed.Comments {
		c.comments += files.Position(group.End()).Line - files.Position(group.Pos()).Line + 1
	}
}

// counts counts what is shipped and what is there to test it: the tests, the integration tests, and the packages that
// only tests use.
func counts(t *testing.T) (shipped, tests count) {
	t.Helper()
	for _, name := range goFiles(t) {
		if strings.HasSuffix(name, "_test.go") || strings.Contains(name, integrations) || strings.Contains(name, "udevtest") {
			tests.add(t, name)
		} else {
			shipped.add(t, name)
		}
	}
	if shipped.files == 0 || tests.files == 0 {
		t.Fatalf("%d files are shipped, %d are tests", shipped.files, tests.files)
	}
	return shipped, tests
}

func TestTheWholeKeepsItsBudget(t *testing.T) {
	shipped, tests := counts(t)
	mean := float64(shipped.lines) / float64(shipped.files)
	comments := 100 * float64(shipped.comments) / float64(shipped.lines-shipped.blank)
	ratio := float64(tests.lines) / float64(shipped.lines)
	t.Logf("%d files with %d lines, %.0f in the mean; %.1f %% of those not blank have a comment; %.2f lines of tests to one",
		shipped.files, shipped.lines, mean, comments, ratio)
	if mean > fileMean {
		t.Errorf("files have %.0f lines in the mean, at most %d", mean, fileMean)
	}
	if comments < commentsMin || comments > commentsMax {
		t.Errorf("%.1f %% of the lines have a comment, not %d to %d", comments, commentsMin, commentsMax)
	}
	if ratio < testsToCode {
		t.Errorf("%.2f lines of tests to a line of code, at least %.1f", ratio, testsToCode)
	}
}
