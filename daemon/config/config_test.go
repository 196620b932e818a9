// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/integration/leak"
)

// reference is metalplug.toml, which has every key, commented out, with its default.
//
//go:embed metalplug.toml
var reference string

// tree writes files, by relative path, to a new directory and returns the directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// good loads a configuration that must be valid.
func good(t *testing.T, text string) config.Config {
	t.Helper()
	return loadWith(t, map[string]string{"m.toml": text})
}

// loadWith loads m.toml with other files, which must be valid.
func loadWith(t *testing.T, files map[string]string) config.Config {
	t.Helper()
	c, err := config.Load(filepath.Join(tree(t, files), "m.toml"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// values returns the values of a configuration, without its files and positions.
func values(c config.Config) config.Config {
	return config.Config{Paths: c.Paths, Hardware: c.Hardware, Reset: c.Reset, Resources: c.Resources}
}

// TestPending checks that each key that a reload does not apply is listed.
func TestPending(t *testing.T) {
	now := config.Default()
	if pending := now.Pending(config.Default()); pending != nil {
		t.Errorf("of the same: %q", pending)
	}
	then := config.Default()
	then.Hardware.Recording = "/x"
	var fields int
	for _, table := range []reflect.Value{reflect.ValueOf(&then.Paths).Elem(), reflect.ValueOf(&then.Reset).Elem()} {
		for i := range table.NumField() {
			table.Field(i).SetString("/x")
			fields++
		}
	}
	pending := now.Pending(then)
	if want := "hardware.source is udev until metalplugd is restarted, then recording:/x"; !slices.Contains(pending, want) {
		t.Errorf("no %q in %q", want, pending)
	}
	if len(pending) != fields+1 {
		t.Errorf("%d keys differ, %d are named: %q", fields+1, len(pending), pending)
	}
	if pending := now.Pending(now.Reloaded(then)); pending != nil {
		t.Errorf("a reload has taken over what is pending: %q", pending)
	}
}

// TestReloaded checks that a reload applies the resources and their positions in the files.
func TestReloaded(t *testing.T) {
	now, then := good(t, valid), good(t, "\n\n"+valid)
	got, name := now.Reloaded(then), then.Resources[0].Name
	if where := got.Where(name, "name"); where != then.Where(name, "name") || where == now.Where(name, "name") || where == "" {
		t.Errorf("%s is at %q; at first at %q, then at %q", name, where, now.Where(name, "name"), then.Where(name, "name"))
	}
	if !reflect.DeepEqual(got.Resources, then.Resources) || !slices.Equal(got.Files, then.Files) {
		t.Errorf("after a reload of %+v:\n%+v", then, got)
	}
}

// Every key, in every TOML notation, sets the right field, and the rules have the keys that choose devices.
func TestEveryKey(t *testing.T) {
	c := good(t, `
builtin = false
paths = { device_plugins = "/a", pod_resources = "/b/s.sock", state = "/c/", run = "/d", cdi = "/e", sysfs = "/f" }
hardware.source = "recording:/r"
reset.socket = "/j.sock"
reset.holders = "direct"
reset.units = "/u.sock"
[[resource]]
name = "example.com/x"
class = "node"
match = { "ATTR{ready}" = '''1''', DEVNAME = "/dev/x*" }
exclude.DEVNAME = "/dev/x9"
shares = 2
prefer = "spread"
inject = "cdi"
cdi_kind = "example.com/y"
permissions = "wmr"
allow_in_use = true
takeover = true
units = { init = "i@.service", start = "s@.service", release = "r@.service" }
[[resource]]
name = "example.com/z"
class = "nvme"
reset = { method = "pci", scrub = "sanitize", when = "both", timeout = "1h30m" }
[[resource]]
name = "example.com/i"
class = "infiniband"
umad = true
issm = true
`)
	want := config.Config{
		Paths: config.Paths{
			DevicePlugins: "/a", PodResources: "/b/s.sock", State: "/c", Run: "/d", CDI: "/e", Sysfs: "/f",
			Dev: "/dev", Proc: "/proc", Cgroup: "/sys/fs/cgroup",
		},
		Hardware: config.Hardware{Recording: "/r"},
		Reset:    config.Reset{Socket: "/j.sock", Holders: "direct", Units: "/u.sock"},
		Resources: []config.Resource{
			{
				Name: "example.com/x", Class: device.NodeName,
				Match:   map[string]string{"ATTR{ready}": "1", "DEVNAME": "/dev/x*"},
				Exclude: map[string]string{"DEVNAME": "/dev/x9"},
				Shares:  2, Prefer: "spread", Inject: "cdi", CDIKind: "example.com/y", Permissions: "wmr", AllowInUse: true, Takeover: true,
				Reset: config.ResourceReset{Method: "none", Scrub: "none", When: "start", Timeout: 20 * time.Second, ScrubUnset: true},
				Units: config.Units{Init: "i@.service", Start: "s@.service", Release: "r@.service"},
			},
			{
				Name: "example.com/z", Class: device.NVMeName,
				Shares: 1, Prefer: "packed", Inject: "nodes", Permissions: "rw",
				Reset: config.ResourceReset{Method: "pci", Scrub: "sanitize", When: "both", Timeout: 90 * time.Minute},
			},
			{
				Name: "example.com/i", Class: device.InfiniBandName, Extras: []string{"umad", "issm"},
				Shares: 1, Prefer: "packed", Inject: "nodes", Permissions: "rw",
				Reset: config.ResourceReset{Method: "none", Scrub: "none", When: "start", Timeout: 20 * time.Second},
			},
		},
	}
	if c = values(c); !reflect.DeepEqual(c, want) {
		t.Errorf("\n%+v, want\n%+v", c, want)
	}
	rules := []device.Rule{
		{
			Resource: "example.com/x", Class: &device.Generic, Match: want.Resources[0].Match, Exclude: want.Resources[0].Exclude,
			AllowInUse: true, Scrub: device.ScrubUnset, ClearedAtRelease: true, Init: "i@.service",
		},
		{Resource: "example.com/z", Class: &device.NVMe, Scrub: "sanitize", ErasedAtStart: true, ClearedAtRelease: true},
		{Resource: "example.com/i", Class: &device.InfiniBand, Extras: []string{"umad", "issm"}},
	}
	if got := c.Rules(); !reflect.DeepEqual(got, rules) {
		t.Errorf("rules\n%+v, want\n%+v", got, rules)
	}
}

func TestResetDefaults(t *testing.T) {
	const head = "[[resource]]\nname = \"example.com/x\"\n"
	for _, test := range []struct {
		name, text string
		want       string // method, scrub, moment and timeout
		start, end bool
	}{
		{"nvme", "class = \"nvme\"\nreset.scrub = \"none\"", "auto none start 20s", true, false},
		{"nothing works", `class = "infiniband"`, "none none start 20s", false, false},
		{"chosen", "class = \"nvme\"\nreset = { method = \"pci:flr\", scrub = \"none\" }", "pci:flr none start 20s", true, false},
		{"shared", "class = \"nvme\"\nshares = 2\nreset.scrub = \"none\"", "none none start 20s", false, false},
		{"in use", "class = \"nvme\"\nallow_in_use = true\nreset.scrub = \"none\"", "none none start 20s", false, false},
		{"reset at release", "class = \"nvme\"\nreset = { when = \"release\", scrub = \"none\" }", "auto none release 20s", false, true},
		{"scrub at start", "class = \"nvme\"\nreset.scrub = \"discard\"", "auto discard start 20s", true, false},
		{"scrub at release", "class = \"nvme\"\nreset = { scrub = \"zero\", when = \"release\" }", "auto zero release 1h0m0s", false, true},
		{"scrub at both", "class = \"nvme\"\nreset = { scrub = \"zero\", when = \"both\", timeout = \"48h\" }", "auto zero both 48h0m0s", true, true},
		{"only a scrub", "class = \"nvme\"\nreset = { method = \"none\", scrub = \"format\", when = \"both\", timeout = \"26s\" }", "none format both 26s", true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := good(t, head+test.text).Resources[0].Reset
			if text := fmt.Sprintf("%s %s %s %v", got.Method, got.Scrub, got.When, got.Timeout); text != test.want {
				t.Errorf("%s, want %s", text, test.want)
			}
			if got.AtStart() != test.start || got.AtRelease() != test.end {
				t.Errorf("at start %t, at release %t, want %t, %t", got.AtStart(), got.AtRelease(), test.start, test.end)
			}
		})
	}
}

// setting matches a line of metalplug.toml with a commented-out key or table.
var setting = regexp.MustCompile(`(?m)^#(\S)`)

func TestReference(t *testing.T) {
	for name, text := range map[string]string{
		"as it is":    reference,
		"uncommented": setting.ReplaceAllString(reference, "$1"),
	} {
		c := good(t, text)
		for i := range c.Resources { // resources in a file are not optional
			if c.Resources[i].Optional != (name == "as it is") {
				t.Errorf("metalplug.toml %s: resource %s is optional: %v", name, c.Resources[i].Name, c.Resources[i].Optional)
			}
			c.Resources[i].Optional = true
		}
		if !reflect.DeepEqual(values(c), values(config.Default())) {
			t.Errorf("metalplug.toml %s means\n%+v, want\n%+v", name, c, config.Default())
		}
	}
}

// The examples at the end of the file must be valid.
func TestReferenceExamples(t *testing.T) {
	var lines []string
	for line := range strings.Lines(reference) {
		if example, ok := strings.CutPrefix(line, "#     "); ok {
			lines = append(lines, example)
		}
	}
	c := good(t, strings.Join(lines, ""))
	if own := len(c.Resources) - len(config.Default().Resources) + 1; own != 13 { // nvidia.com/gpu is built in
		t.Errorf("%d examples, want 13", own)
	}
}

// TestMain checks that no test leaves anything running.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
