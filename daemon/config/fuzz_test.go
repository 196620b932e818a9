// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/BurntSushi/toml"
)

// FuzzLoad loads any text as a drop-in. An accepted file must be usable. The error for a rejected file must name a line
// of the file, in one line of printable text.
func FuzzLoad(f *testing.F) {
	f.Add(reference)
	f.Add(setting.ReplaceAllString(reference, "$1"))
	f.Add("\ufeff[[resource]]\r\nname = \"example.com/x\"\r\nclass = \"nvme\"\r\n")
	f.Add("resource = [{ name = 'a/b', class = 'node', match.DEVNAME = '/dev/x' }, {}]")
	f.Add(valid + "match = { \"ATTR{\\u0000}\" = \"[\" }\nreset = { scrub = \"zero\", when = \"both\", timeout = \"9h\" }\n")
	f.Add("paths = { device_plugins = \"/" + strings.Repeat("d", 100) + "\" }\nhardware.source = \"recording:\\u0000\"\n")
	f.Add("a = \"\"\"\n\\\"\"\" = [\n\"\"\"\"\"\n'b=' = '''\n'''''\n")
	f.Fuzz(func(t *testing.T, text string) {
		c := basic()
		found := c.apply("/etc/metalplug", parse("f.toml", text))
		lines := 1 + strings.Count(text, "\n")
		for _, p := range found {
			if p.Line > lines || p.Line < 1 || strings.ContainsFunc(p.String(), unicode.IsControl) || len(p.String()) > 1000 {
				t.Errorf("problem %q of %d lines", p, lines)
			}
		}
		if len(found) > 0 {
			return
		}
		checkUsable(t, c)
		again := basic()
		if found := again.apply("/etc/metalplug", parse("f.toml", text)); len(found) > 0 {
			t.Errorf("the second time: %v", found)
		}
		if !reflect.DeepEqual(c, again) {
			t.Errorf("%+v, the second time %+v", c, again)
		}
	})
}

// checkUsable checks conditions that every accepted configuration must meet.
func checkUsable(t *testing.T, c Config) {
	t.Helper()
	if c.Reset.Socket == "" || c.Reset.Holders == "" || c.Reset.Units == "" {
		t.Errorf("incomplete: %+v", c)
	}
	seen := make(map[string]bool)
	for _, r := range c.Resources {
		if r.Class == nil || checkName(r.Name) != nil || seen[r.Name] || r.Shares < 1 || checkPermissions(r.Permissions) != nil {
			t.Errorf("unusable: %+v", r)
		}
		seen[r.Name] = true
		if r.Reset.Scrub != None && (r.Shares > 1 || r.AllowInUse) || r.Reset.Method != None && r.Shares > 1 {
			t.Errorf("dangerous: %+v", r)
		}
		if r.Reset.Timeout <= 0 || r.Reset.When == WhenStart && r.Reset.Timeout > startMost {
			t.Errorf("out of time: %+v", r)
		}
	}
}

// FuzzLines compares the line scanner with the parser. Both must find the same number of keys in every document.
func FuzzLines(f *testing.F) {
	f.Add(setting.ReplaceAllString(reference, "$1"))
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
