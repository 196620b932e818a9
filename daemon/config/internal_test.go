// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"

	"github.com/metalplug/metalplug/daemon/device"
)

func TestLineIndex(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       map[string]int
	}{
		{"empty", "", map[string]int{}},
		{"keys and tables", "a = 1\n\n[b] # [x]\nc = 1\n[ b . d ]\n", map[string]int{"a": 1, "b": 3, "b.c": 4, "b.d": 5}},
		{"inline table on lines", "a = { # {\n b = 1,\n\n c = 2,\n}\nd = 1\n", map[string]int{"a": 1, "a.b": 1, "a.c": 1, "d": 6}},
		{
			"long strings", "a = \"\"\"\nb = 1\n\\\"\"\" [c]\n\"\"\"\"\"\nd = '''\n[e]\\''''\nf = \"\"\ng = ''\nh = \"\\\"=\\\\\"\n",
			map[string]int{"a": 1, "d": 5, "f": 7, "g": 8, "h": 9},
		},
		{"arrays", "a = [\n[1,\n2], [ # ]\n'b = 1', \"]\"\n]\n]\nc = 1\n[d]\n", map[string]int{"a": 1, "c": 7, "d": 8}},
		{
			"resources", "[[resource]]\na = 1\nb = { c = 1 }\n[resource.d]\ne = 1\n\n[[resource]]\nd.e = 1\n[[resource]]\n[resource.b]\n",
			map[string]int{
				"resource": 1, "resource.0": 1, "resource.0.a": 2, "resource.0.b": 3, "resource.0.b.c": 3, "resource.0.d": 4, "resource.0.d.e": 5,
				"resource.1": 7, "resource.1.d": 8, "resource.1.d.e": 8, "resource.2": 9, "resource.2.b": 10,
			},
		},
		{"resource as table", "[resource]\na = 1\n", map[string]int{"resource": 1, "resource.0": 1, "resource.0.a": 2}},
		{"commas", "# a,\na = [\n1,\n2,\n]\n# b,\nb = 1\n", map[string]int{"a": 2, "b": 7}},
		{"other arrays of tables", "[[a]]\nb = 1\n[[a]]\nb = 1\n", map[string]int{"a": 1, "a.b": 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var values map[string]any
			meta, err := toml.Decode(test.text, &values)
			if err != nil {
				t.Fatal(err)
			}
			if got := newLineIndex(keyLines(test.text), meta.Keys()); !maps.Equal(got, test.want) {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}

func TestReferenceShowsEveryKey(t *testing.T) {
	text, err := os.ReadFile("metalplug.toml")
	if err != nil {
		t.Fatal(err)
	}
	reference := string(text)
	for spelling := range exampleValues {
		pattern := `(?m)^#(` + spelling[strings.LastIndex(spelling, ".")+1:] + ` = |\[+` + regexp.QuoteMeta(spelling) + `\]+$)`
		if !regexp.MustCompile(pattern).MatchString(reference) {
			t.Errorf("metalplug.toml does not show %s", spelling)
		}
	}
	for i, class := range append(slices.Clone(device.Classes), &device.Bundle) {
		if classNames[i] != class.Name {
			t.Errorf("the configuration knows no class %s", class.Name)
		}
	}
	for _, class := range device.Classes {
		if _, ok := classAbilities[class.Name]; !ok {
			t.Errorf("nothing is known of the resets of class %s", class.Name)
		}
		for _, method := range append(classAbilities[class.Name].methods, classAbilities[class.Name].scrubs...) {
			if !strings.Contains(reference, method) {
				t.Errorf("metalplug.toml does not mention %s of class %s", method, class.Name)
			}
		}
	}
}

// TestOptionalMainFile checks that the drop-ins are read with and without the default file.
func TestOptionalMainFile(t *testing.T) {
	dir := t.TempDir()
	main := filepath.Join(dir, "m.toml")
	c, err := load(main, true)
	if err != nil || !reflect.DeepEqual(c, Default()) {
		t.Errorf("without the default file: %+v, %v", c, err)
	}
	drop := filepath.Join(dir, "conf.d", "a.toml")
	if err := os.MkdirAll(filepath.Dir(drop), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(drop, []byte("[[resource]]\nname = \"example.com/x\"\nclass = \"gpu\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err = load(main, true)
	if err != nil || c.Resources[0].Name != "example.com/x" || !slices.Equal(c.Files, []string{drop}) {
		t.Errorf("with a drop-in only: %+v, %v", c, err)
	}
}

// FuzzLines compares the line scanner with the parser. Both must find the same number of keys in every document.
func FuzzLines(f *testing.F) {
	reference, err := os.ReadFile("metalplug.toml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(strings.ReplaceAll(string(reference), "\n#", "\n"))
	f.Add("a = [ { b = 1 }, { 'c=' = \"\"\"=\"\"\"\"\" } ] # =\n[ \"d\" . e ]\n[[f]]\n")
	f.Fuzz(func(t *testing.T, text string) {
		lines := keyLines(text)
		var values map[string]any
		meta, err := toml.Decode(text, &values)
		var parseError toml.ParseError
		if err != nil {
			if !errors.As(err, &parseError) {
				t.Errorf("%v is no parse error", err)
			}
			return
		}
		if got, want := len(lines), len(meta.Keys()); got != want {
			t.Errorf("%d lines for %d keys %q", got, want, meta.Keys())
		}
	})
}
