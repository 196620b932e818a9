// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/config"
)

func names(c config.Config) []string {
	var all []string
	for _, r := range c.Resources {
		all = append(all, r.Name)
	}
	return all
}

func TestDropIns(t *testing.T) {
	dir := tree(t, map[string]string{
		"m.toml": `
paths.run = "/main"
paths.state = "/main"
hardware.source = "recording:main.rec"
[[resource]]
name = "example.com/a"
class = "gpu"
shares = 2
[[resource]]
name = "example.com/b"
class = "gpu"
[[resource]]
name = "example.com/c"
class = "gpu"
`,
		"conf.d/20-x.toml": `
paths.run = "/20"
[[resource]]
name = "example.com/b"
class = "fpga"
[[resource]]
name = "example.com/d"
class = "gpu"
`,
		"conf.d/100-y.toml": `
paths.run = "/100"
paths.cdi = "/100"
[[resource]]
name = "example.com/a"
class = "gpu"
permissions = "r"
[[resource]]
name = "example.com/d"
class = "fpga"
`,
		"conf.d/30-empty.toml":   "",
		"conf.d/.hidden.toml":    "nonsense",
		"conf.d/40-x.toml~":      "nonsense",
		"conf.d/README":          "nonsense",
		"conf.d/sub/50-sub.toml": "nonsense",
	})
	c, err := config.Load(filepath.Join(dir, "m.toml"))
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, file := range c.Files {
		files = append(files, strings.TrimPrefix(file, dir+"/"))
	}
	want := []string{"m.toml", "conf.d/100-y.toml", "conf.d/20-x.toml", "conf.d/30-empty.toml"}
	if !slices.Equal(files, want) {
		t.Errorf("files %q, want %q", files, want)
	}
	if c.Paths.Run != "/20" || c.Paths.CDI != "/100" || c.Paths.State != "/main" || c.Paths.Dev != "/dev" {
		t.Errorf("paths %+v", c.Paths)
	}
	want = append([]string{"example.com/a", "example.com/b", "example.com/c", "example.com/d"}, names(config.Default())...)
	if got := names(c); !slices.Equal(got, want) {
		t.Errorf("resources %q, want %q", got, want)
	}
	// A resource is overridden key by key, and the last file that has a key applies.
	if a := c.Resources[0]; a.Shares != 2 || a.Permissions != "r" {
		t.Errorf("overridden %+v", a)
	}
	if b, d := c.Resources[1].Class, c.Resources[3].Class; b != "fpga" || d != "gpu" {
		t.Errorf("classes %s and %s", b, d)
	}
}

func TestDirect(t *testing.T) {
	for text, want := range map[string]config.Reset{
		``:                         {"/run/metalplug/reset.sock", "/run/metalplug/holders.sock", "/run/metalplug/unit.sock"},
		`reset.socket = "direct"`:  {"direct", "direct", "direct"},
		`reset.holders = "direct"`: {"/run/metalplug/reset.sock", "direct", "/run/metalplug/unit.sock"},
		`reset = { socket = "direct", holders = "/h.sock", units = "/u.sock" }`: {"direct", "/h.sock", "/u.sock"},
	} {
		if got := good(t, text).Reset; got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

// An error in one file does not stop the check of the others.
func TestProblemsOfSeveralFiles(t *testing.T) {
	dir := tree(t, map[string]string{
		"m.toml":        "colour = 1\n",
		"conf.d/b.toml": valid + "shares = 0\n" + valid,
		"conf.d/a.toml": "= 1\n",
	})
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "conf.d", "c.toml"), 0o755), os.Symlink("nowhere", filepath.Join(dir, "conf.d", "d.toml"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", filepath.Join(dir, "conf.d", "e.toml")); err != nil {
		t.Fatal(err)
	}
	_, err := config.Load(filepath.Join(dir, "m.toml"))
	want := `m.toml:1: colour: unknown key; valid keys are builtin, hardware, paths, reset, resource
conf.d/a.toml:1: unexpected '=': key name appears blank` + tomlRemedy + `
conf.d/b.toml:4: resource.shares: 0 is not between 1 and 1000; write shares = 1
conf.d/b.toml:6: resource.name: "example.com/x" is defined twice, first on line 2; merge the two
conf.d/c.toml: is not a regular file; name a file such as /etc/metalplug/metalplug.toml
conf.d/d.toml: open: no such file or directory`
	if got := strings.ReplaceAll(err.Error(), dir+"/", ""); got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
}

func TestUnreadable(t *testing.T) {
	dir := tree(t, map[string]string{"m.toml": "", "x/conf.d": "", "x/m.toml": ""})
	for name, want := range map[string]string{
		"":           "is not a regular file; name a file such as /etc/metalplug/metalplug.toml",
		"m.toml/x":   "m.toml/conf.d: open: not a directory",
		"x/m.toml":   "x/conf.d: open: not a directory",
		"m\x00.toml": "m\x00.toml: open: invalid argument",
		"nowhere/m":  "nowhere/m: open: no such file or directory",
	} {
		_, err := config.Load(filepath.Join(dir, name))
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", name, err, want)
		}
	}
}

func TestFormsOfText(t *testing.T) {
	const text = "[[resource]]\nname = \"example.com/x\"\nclass = \"gpu\"\nshares = 3\ncolour = 1\n"
	for name, form := range map[string]string{
		"plain":                text,
		"CRLF":                 strings.ReplaceAll(text, "\n", "\r\n"),
		"byte order mark":      "\ufeff" + text,
		"mark and CRLF":        "\ufeff" + strings.ReplaceAll(text, "\n", "\r\n"),
		"no newline at end":    strings.TrimSuffix(text, "\n"),
		"blanks at both ends":  strings.ReplaceAll(strings.ReplaceAll(text, "\n", " \t\n"), "\nclass", "\n  class"),
		"comments at all ends": strings.ReplaceAll(text, "\n", " # = [ ' \"\"\"\n"),
	} {
		if got, want := problems(t, form), "m.toml:5: resource.colour: unknown key; valid keys are "+resourceKeys; got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if got := good(t, strings.Replace(form, "colour", "# colour", 1)).Resources[0].Shares; got != 3 {
			t.Errorf("%s: shares = %d, want 3", name, got)
		}
	}
}

func TestNothingConfigured(t *testing.T) {
	for _, text := range []string{"", "\n", "# only a comment", "\ufeff", "\r\n", "resource = []", "[paths]\n[reset]\n[hardware]\n"} {
		c := good(t, text)
		c.Files = nil
		if !reflect.DeepEqual(c, config.Default()) {
			t.Errorf("%q means %+v", text, c)
		}
	}
}

// TestLoadUsable checks that LoadUsable reports a recording that it cannot open, with the line that names it, even in a drop-in.
func TestLoadUsable(t *testing.T) {
	dir := tree(t, map[string]string{
		"good.rec": "P: /devices/virtual/x/x0\nE: SUBSYSTEM=x\n", "bad.rec": "P: /devices/x\nnonsense\n",
		"none.toml": "", "good.toml": `hardware.source = "recording:good.rec"`,
		"gone.toml": "[hardware]\nsource = \"recording:gone.rec\"", "bad.toml": `hardware.source = "recording:bad.rec"`,
		"dir.toml": `hardware.source = "recording:conf.d"`,
	})
	for name, want := range map[string]string{
		"none.toml": "", "good.toml": "",
		"gone.toml": ":2: hardware.source: open recording " + dir + "/gone.rec: no such file or directory",
		"bad.toml":  ":1: hardware.source: open recording " + dir + "/bad.rec: line 2: ",
		"dir.toml":  ":1: hardware.source: open recording " + dir + "/conf.d: ",
	} {
		file := filepath.Join(dir, name)
		if _, err := config.Load(file); err != nil {
			t.Fatal(err)
		}
		switch _, err := config.LoadUsable(file); {
		case (err == nil) != (want == ""):
			t.Errorf("%s: %v", name, err)
		case err != nil && !strings.HasPrefix(err.Error(), file+want):
			t.Errorf("%v, want %s%s", err, file, want)
		}
	}
	dir = tree(t, map[string]string{
		"m.toml": `hardware.source = "udev"`, "conf.d/a.toml": "\n\nhardware.source = \"recording:sub/../gone.rec\"",
		"conf.d/b.toml": "[paths]\nrun = \"/x\"",
	})
	if _, err := config.LoadUsable(filepath.Join(dir, "m.toml")); err == nil || !strings.HasPrefix(err.Error(), dir+"/conf.d/a.toml:3: hardware.source: open recording "+dir+"/gone.rec: ") {
		t.Errorf("%v", err)
	}
}

// TestWhere checks that each rule is found in its file, in any notation.
func TestWhere(t *testing.T) {
	dir := tree(t, map[string]string{
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

[[resource]]
name = "nvidia.com/gpu"
exclude = { PCI_SLOT_NAME = "0000:01:*" }
`,
		"conf.d/1.toml": `[[resource]]
name = "example.com/c"
match = { PCI_ID = "10DE:*" }
class = "gpu"
[[resource]]
name = "example.com/b"
exclude = { PCI_ID = "15B3:*" }
class = "infiniband"
[[resource]]
name = "nvidia.com/gpu"
shares = 2
`,
	})
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
			{"nvidia.com/gpu", "exclude.PCI_SLOT_NAME", "t.toml:18"},
			{"nvidia.com/gpu", "shares", "conf.d/1.toml:11"},
			{"nvidia.com/gpu", "match.PCI_ID", "conf.d/1.toml:9"}, // a built-in value
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
