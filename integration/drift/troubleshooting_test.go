// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"flag"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/systemd"
)

var update = flag.Bool("update", false, "write the log messages of docs/troubleshooting.md from the journal's catalog")

// TestTroubleshooting compares the second half of docs/troubleshooting.md with the journal's catalog.
func TestTroubleshooting(t *testing.T) {
	const file, begin = "../../docs/troubleshooting.md", "<!-- The rest is made from systemd/metalplug.catalog. -->\n"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(page), begin)
	if !ok {
		t.Fatalf("%s has no line %q", file, begin)
	}
	want := head + begin + messages(catalog(t))
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(page) != want {
		t.Errorf("%s is not what the catalog has: run go test ./integration/drift -run TestTroubleshooting -update", file)
	}
}

// harmless ends the entry of a message after which nothing needs to be done.
const harmless = "Nothing needs to be done."

// messages formats the catalog's entries in Markdown, those with a remedy first.
func messages(entries map[string]entry) string {
	var todo, rest strings.Builder
	all := systemd.MessageIDs()
	for _, message := range slices.Sorted(maps.Keys(all)) {
		e := entries[all[message]]
		out := &todo
		if strings.HasSuffix(strings.TrimSpace(e.text), harmless) {
			out = &rest
		}
		subject, _, _ := strings.Cut(strings.TrimPrefix(e.head, "Subject: "), "\n")
		out.WriteString("\n### `" + message + "`\n\n" + field(subject) + ".\n\n" + markdown(e.text))
	}
	return "\n## Log messages with something to do\n" + todo.String() + "\n## Log messages for your information\n" + rest.String()
}

var reference = regexp.MustCompile(`@(?:METALPLUG_)?([A-Z_]+)@`)

// field formats a field of the log line as a word in capitals.
func field(text string) string { return reference.ReplaceAllString(text, "$1") }

// markdown turns indented lines into code blocks, except for fields of the log line.
func markdown(text string) string {
	var b strings.Builder
	code := false
	fence := func(on bool) {
		if on != code {
			b.WriteString(map[bool]string{true: "\n```\n", false: "```\n\n"}[on])
		}
		code = on
	}
	for line := range strings.Lines(strings.TrimSpace(text) + "\n") {
		command, indented := strings.CutPrefix(line, "    ")
		fence(indented)
		b.WriteString(field(command))
	}
	fence(false)
	return strings.TrimSpace(regexp.MustCompile(`\n{3,}`).ReplaceAllString(b.String(), "\n\n")) + "\n"
}
