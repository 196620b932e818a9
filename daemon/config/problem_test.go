// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/config"
)

// Beginnings of resources. The last line is the third. A disk must still set scrub.
const (
	valid   = "[[resource]]\nname = \"example.com/x\"\nclass = \"gpu\"\n"
	bundled = "[[resource]]\nname = \"example.com/b\"\nclass = \"bundle\"\n"
	disk    = "[[resource]]\nname = \"example.com/x\"\nclass = \"nvme\"\n"
)

// resourceKeys are the keys of a resource, as an error lists them.
const resourceKeys = "allow_in_use, cdi_kind, class, env, exclude, group, group_by, inject, issm, match, members, name, near, nodes, " +
	"optional, permissions, prefer, reset, rest, serve, shares, takeover, umad, units"

// problems loads a configuration and returns its problems, without the directory.
func problems(t *testing.T, text string) string {
	t.Helper()
	return problemsOf(t, map[string]string{"m.toml": text})
}

// problemsOf loads m.toml with other files, and returns the problems, without the directory.
func problemsOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := tree(t, files)
	_, err := config.Load(filepath.Join(dir, "m.toml"))
	var found config.Problems
	if err != nil && !errors.As(err, &found) {
		t.Fatalf("%v is no list of problems", err)
	}
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), dir+"/", "")
}

// tomlRemedy is the remedy for a file that is not TOML.
const tomlRemedy = `; in TOML, write key = "text", key = 1 or key = true below [NAME] or [[resource]], and a key such as "ATTR{size}" in quotes`

// TestProblems checks the errors for the configurations in testdata/problems. A case has a name, the text of m.toml and
// perhaps drop-ins, and the errors, which may be none.
func TestProblems(t *testing.T) {
	files, err := filepath.Glob("testdata/problems/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no problems: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name, configuration := "", map[string]string{}
		for _, section := range strings.Split("\n"+string(text), "\n-- ")[1:] {
			switch head, body, _ := strings.Cut(section, " --\n"); {
			case strings.HasSuffix(head, ".toml"):
				configuration[head] = body + "\n"
			case head != "want":
				name, configuration = head, map[string]string{"m.toml": body + "\n"}
			default:
				t.Run(name, func(t *testing.T) { checkProblems(t, configuration, strings.TrimSpace(body)) })
			}
		}
	}
}

// TestUnprintableProblems checks the errors for configurations that a text file cannot show.
func TestUnprintableProblems(t *testing.T) {
	for text, want := range map[string]string{
		"a = \"\\":                        `m.toml:1: a: invalid escape in string '\ '`,
		"paths = { run = \"/run\"":        `m.toml:1: paths.run: expected a comma or an inline table terminator '}', but got end of file instead`,
		"[paths]\r\nrun = \"/a\r\n\"\r\n": `m.toml:2: paths.run: strings cannot contain newlines`,
		"\n[paths]\nrun = \"/a\x00\"\n":   `m.toml:3: paths.run: TOML files cannot contain control characters: '0x00'`,
		"a\x00 \x00=\x00":                 `m.toml:1: files cannot contain NULL bytes; probably using UTF-16; TOML files must be UTF-8`,
	} {
		checkProblems(t, map[string]string{"m.toml": text}, want+tomlRemedy)
	}
}

// checkProblems checks the errors for a configuration, and that each of them has a remedy.
func checkProblems(t *testing.T, files map[string]string, want string) {
	t.Helper()
	got := problemsOf(t, files)
	if got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
	for line := range strings.Lines(got) {
		if !strings.Contains(line, "; ") {
			t.Errorf("there is no remedy in %q", line)
		}
	}
}

// wrongTypes are values of all types of TOML, by the name of the type in an error.
var wrongTypes = map[string]string{
	"a string in quotes": `"text"`, "an integer": "7", "a float": "1.5", "a boolean": "true", "a date or time": "2026-11-25", "an array": "[1]",
	"a table": "{ a = 1 }",
}

// TestTypes writes a value of each other type for each key of the reference. The error must name the file, the line, the key,
// the two types and an example that is valid.
func TestTypes(t *testing.T) {
	header, seen := "", map[string]bool{}
	for line := range strings.Lines(reference) {
		line, active := strings.CutPrefix(strings.TrimSpace(line), "#")
		key, value, isKey := strings.Cut(line, " = ")
		switch {
		case !active || strings.HasPrefix(line, " "):
		case strings.HasPrefix(line, "["):
			header = line
		case isKey && !seen[header+key] && !strings.Contains(key, " "):
			seen[header+key] = true
			testTypes(t, header, key, value)
		}
	}
	for _, table := range []string{"match", "exclude", "env"} {
		testTypes(t, "[resource."+table+"]", "ID_X", `"text"`)
	}
	for _, table := range []string{"[paths]", "[hardware]", "[reset]", "[resource.reset]", "[resource.units]"} {
		parent, key, below := strings.Cut(strings.Trim(table, "[]"), ".")
		if !below {
			parent, key = "", parent
		}
		testTypes(t, map[bool]string{true: "[[resource]]"}[parent != ""], key, "{}")
	}
	if len(seen) < 43 {
		t.Errorf("only %d keys", len(seen))
	}
}

// testTypes tests a key below a header with values that have another type than the given one.
func testTypes(t *testing.T, header, key, valid string) {
	t.Helper()
	for name, wrong := range wrongTypes {
		if wrong[0] == valid[0] || valid == "false" && wrong == "true" || valid == "1" && wrong == "7" {
			continue
		}
		begin := ""
		switch {
		case header == "[[resource]]" && (key == "name" || key == "class"):
			begin = "[[resource]]\n"
		case header == "[[resource]]" && (key == "near" || key == "rest" || key == "members"):
			begin = bundled
		case strings.HasPrefix(header, "[resource."):
			begin = disk + header + "\n"
		case header == "[[resource]]":
			begin = disk
		case header != "":
			begin = header + "\n"
		}
		path := strings.TrimPrefix(strings.Trim(header, "[]")+"."+key, ".")
		want := fmt.Sprintf("m.toml:%d: %s: is %s, not ", strings.Count(begin, "\n")+1, path, name)
		got := problems(t, begin+key+" = "+wrong+"\n")
		found := slices.DeleteFunc(strings.Split(got, "\n"), func(line string) bool { return !strings.HasPrefix(line, want) })
		if len(found) != 1 {
			t.Errorf("%s = %s: %q, want %q", path, wrong, got, want)
			continue
		}
		_, remedy, _ := strings.Cut(found[0], "; write ")
		if remedy == "["+path+"]" {
			continue
		}
		remedy, _, _ = strings.Cut(remedy, `, "5m"`)
		remedy, _, _ = strings.Cut(remedy, ` or "`)
		again := problems(t, begin+remedy+"\n")
		if !strings.HasPrefix(remedy, key+" = ") || strings.Contains(again, " "+path+": is a") {
			t.Errorf("%s = %s: %q, whose example gives %q", path, wrong, found[0], again)
		}
	}
}

// A long text from a file is shortened in an error.
func TestLongTexts(t *testing.T) {
	long := strings.Repeat("ä", 2048)
	got := problems(t, "[[resource]]\nname = \""+long+"\"\nclass = \"gpu\"\nmatch.\""+long+"\" = \"[\"\n\""+long+"\" = 1\n")
	want := `m.toml:2: resource.name: "` + long[:160] + `" is not a resource name like "example.com/name": at most 244 lower-case letters, digits, "-" and ".", a slash, and at most 63 letters, digits, "-", "_" and "."; write name = "example.com/gpu"
m.toml:4: resource.match."` + long[:288] + `: is neither a udev property like "PCI_ID" nor "ATTR{name}"; write ID_MODEL or "ATTR{size}"
m.toml:4: resource.match."` + long[:288] + `: "[" is not a valid pattern: it has an unclosed "[" or ends in "\"; write "` + long[:318] + ` = "A*" or "A*|B"
m.toml:5: resource."` + long[:300] + `: unknown key; valid keys are ` + resourceKeys
	if got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
}
