// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
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
