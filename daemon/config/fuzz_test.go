// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/metalplug/metalplug/daemon/config"
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
		file := filepath.Join(t.TempDir(), "f.toml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(file)
		var found config.Problems
		if err != nil && !errors.As(err, &found) {
			t.Fatal(err)
		}
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
		if again, err := config.Load(file); err != nil || !reflect.DeepEqual(c, again) {
			t.Errorf("%+v, the second time %+v, %v", c, again, err)
		}
	})
}

// checkUsable checks conditions that every accepted configuration must meet.
func checkUsable(t *testing.T, c config.Config) {
	t.Helper()
	if c.Reset.Socket == "" || c.Reset.Holders == "" || c.Reset.Units == "" {
		t.Errorf("incomplete: %+v", c)
	}
	seen := make(map[string]bool)
	for _, r := range c.Resources {
		if r.Class == "" || !strings.Contains(r.Name, "/") || seen[r.Name] || r.Shares < 1 || strings.Trim(r.Permissions, "rwm") != "" {
			t.Errorf("unusable: %+v", r)
		}
		seen[r.Name] = true
		if r.Reset.Scrub != config.None && (r.Shares > 1 || r.AllowInUse) || r.Reset.Method != config.None && r.Shares > 1 {
			t.Errorf("dangerous: %+v", r)
		}
		if r.Reset.Timeout <= 0 || r.Reset.When == config.WhenStart && r.Reset.Timeout > 25*time.Second {
			t.Errorf("out of time: %+v", r)
		}
	}
}
