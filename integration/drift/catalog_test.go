// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"go/ast"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/systemd"
)

const catalogFile = "../../systemd/metalplug.catalog"

// entry is the catalog's entry for one message.
type entry struct{ head, text string }

// catalog reads the catalog. The keys are MESSAGE_IDs.
func catalog(t *testing.T) map[string]entry {
	t.Helper()
	text, err := os.ReadFile(catalogFile)
	if err != nil {
		t.Fatal(err)
	}
	entries := make(map[string]entry)
	for _, part := range strings.Split(string(text), "\n-- ")[1:] {
		id, rest, _ := strings.Cut(part, "\n# ")
		_, rest, _ = strings.Cut(rest, "\n") // the line after the message
		head, body, _ := strings.Cut(rest, "\n\n")
		if _, twice := entries[id]; twice {
			t.Errorf("%s is explained twice", id)
		}
		entries[id] = entry{head, body}
	}
	return entries
}

// TestCatalogExplainsEachMessage checks that the code logs each message of the catalog, and that each explanation
// describes the state and a remedy.
func TestCatalogExplainsEachMessage(t *testing.T) {
	entries, logged := catalog(t), literals(t)
	seen := make(map[string]string)
	form := regexp.MustCompile(`^[0-9a-f]{32}$`)
	for message, id := range systemd.MessageIDs() {
		e, ok := entries[id]
		switch {
		case !form.MatchString(id):
			t.Errorf("%s: %q is no ID: make one with systemd-id128 new", message, id)
		case seen[id] != "":
			t.Errorf("%s and %s have the same ID", message, seen[id])
		case !ok || !strings.Contains(e.head, "Subject: ") || !strings.Contains(e.head, "Defined-By: metalplug") || len(e.text) < 60:
			t.Errorf("%s: the entry lacks a subject, its origin or an explanation:\n%s\n%s", message, e.head, e.text)
		}
		if !logged[message] {
			t.Errorf("nobody logs %q: nothing is to be explained", message)
		}
		seen[id] = message
	}
	if len(seen) != len(entries) {
		t.Errorf("%d messages for %d entries", len(seen), len(entries))
	}
}

// TestErrorsAreExplained checks that the catalog explains each error in the log. After an error the operator must act,
// and journalctl -x explains how. The test cannot see a message that is not a literal where it is logged.
func TestErrorsAreExplained(t *testing.T) {
	ids, named := systemd.MessageIDs(), 0
	for _, s := range sources(t) {
		ast.Inspect(s.File, func(n ast.Node) bool {
			message, ok := loggedError(n)
			if !ok {
				return true
			}
			named++
			if ids[message] == "" {
				t.Errorf("%s: the error %q is not in systemd/metalplug.catalog: make an ID with systemd-id128 new", s.name, message)
			}
			return true
		})
	}
	if named < 10 {
		t.Fatalf("%d errors are logged: this test looks at the wrong place", named)
	}
}

// TestDevicesAreExplained checks that each audit line and each line about the evidence of a disk has a MESSAGE_ID.
func TestDevicesAreExplained(t *testing.T) {
	ids, named := systemd.MessageIDs(), 0
	about := regexp.MustCompile(`^(device|disk|two disks|evidence|adoption) [a-z ]+[a-z]$`)
	for _, s := range sources(t) {
		if s.name != "daemon/audit/audit.go" && s.name != "daemon/inventory/evidence.go" {
			continue
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			message, err := strconv.Unquote(literal.Value)
			if err != nil || !about.MatchString(message) {
				return true
			}
			if named++; ids[message] == "" {
				t.Errorf("%s: %q is not in systemd/metalplug.catalog: make an ID with systemd-id128 new", s.name, message)
			}
			return true
		})
	}
	if named < 12 {
		t.Fatalf("%d messages: this test looks at the wrong place", named)
	}
}

// loggedError returns the message of a call to a logger's method Error.
func loggedError(n ast.Node) (message string, ok bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return "", false
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || method.Sel.Name != "Error" || !isLogger(method.X) {
		return "", false
	}
	literal, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		return "", false
	}
	message, err := strconv.Unquote(literal.Value)
	return message, err == nil
}

// TestCatalogFieldsExist checks that each @FIELD@ in the catalog is a field of the log line.
func TestCatalogFieldsExist(t *testing.T) {
	for id, e := range catalog(t) {
		for _, field := range regexp.MustCompile(`@([A-Z_]+)@`).FindAllStringSubmatch(e.head+e.text, -1) {
			key := strings.ToLower(strings.TrimPrefix(field[1], "METALPLUG_"))
			if !slices.Contains(fieldKeys, key) {
				t.Errorf("%s: %s is none of the fields", id, field[0])
			}
		}
	}
}

// literals returns all string literals in the shipped code.
func literals(t *testing.T) map[string]bool {
	t.Helper()
	all := make(map[string]bool)
	for _, s := range sources(t) {
		ast.Inspect(s.File, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil {
					all[text] = true
				}
			}
			return true
		})
	}
	return all
}

// TestJournaldReadsTheCatalog compiles the catalog with systemd's own program.
func TestJournaldReadsTheCatalog(t *testing.T) {
	journalctl := program(t, "journalctl", "systemd")
	root := t.TempDir()
	text, err := os.ReadFile(catalogFile)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "usr/lib/systemd/catalog")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "metalplug.catalog"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(journalctl, "--root", root, "--update-catalog").CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command(journalctl, "--root", root, "--list-catalog").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for message, id := range systemd.MessageIDs() {
		if !strings.Contains(string(out), id) {
			t.Errorf("%s (%s) is not in what journald has read:\n%s", message, id, out)
		}
	}
}
