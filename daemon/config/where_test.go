// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/config"
)

// TestWhere checks that each rule is found in its file, in any notation.
func TestWhere(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"t.toml": `[paths]
state = "/x"

[[resource]]
name = "example.com/a"
class = "gpu"
match = { ID_MODEL = "A*", "ATTR{queue/rotational}" = "0" }
[resource.exclude]
ID_SERIAL = "S1"
"PCI_SLOT_NAME" = "0000:01:*"

[[resource]]
name = "example.com/b"
class = "infiniband"
`,
		"conf.d/1.toml": `[[resource]]
name = "example.com/c"
match = { PCI_ID = "10DE:*" }
class = "gpu"
[[resource]]
name = "example.com/b"
exclude = { PCI_ID = "15B3:*" }
class = "infiniband"
`,
	} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	for _, file := range []string{filepath.Join(dir, "t.toml"), "t.toml"} {
		c, err := config.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range []struct{ resource, key, want string }{
			{"example.com/a", "name", "t.toml:5"},
			{"example.com/a", "match", "t.toml:7"},
			{"example.com/a", "match.ID_MODEL", "t.toml:7"},
			{"example.com/a", "match.ATTR{queue/rotational}", "t.toml:7"},
			{"example.com/a", "exclude.ID_SERIAL", "t.toml:9"},
			{"example.com/a", "exclude.PCI_SLOT_NAME", "t.toml:10"},
			{"example.com/a", "exclude.NONE", "t.toml:8"},
			{"example.com/b", "name", "conf.d/1.toml:6"}, // conf.d/1.toml replaces the first definition
			{"example.com/b", "exclude.PCI_ID", "conf.d/1.toml:7"},
			{"example.com/c", "match.PCI_ID", "conf.d/1.toml:3"},
			{"example.com/none", "match", ""},
		} {
			want := w.want
			if want != "" {
				want = filepath.Join(dir, want)
			}
			if got := c.Where(w.resource, w.key); got != want {
				t.Errorf("%s: %s of %s is at %q, want %q", file, w.key, w.resource, strings.TrimPrefix(got, dir), w.want)
			}
		}
	}
	if got := config.Default().Where("nvidia.com/gpu", "match"); got != "" {
		t.Errorf("a default is at %q", got)
	}
}
