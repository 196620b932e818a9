// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
)

func find(t *testing.T, c config.Config, name string) config.Resource {
	t.Helper()
	r, ok := c.Resource(name)
	if !ok {
		t.Fatalf("no %s among %q", name, names(c))
	}
	return r
}

// The operator's resources come first, in the order in which the files name them, then the built-in ones.
func TestOrder(t *testing.T) {
	rest := slices.DeleteFunc(names(config.Default()), func(name string) bool { return name == "amd.com/gpu" })
	const files = "[[resource]]\nname = \"example.com/a\"\nclass = \"gpu\"\n[[resource]]\nname = \"amd.com/gpu\"\nshares = 2\n"
	own := []string{"example.com/a", "amd.com/gpu", "example.com/b"}
	drop := "[[resource]]\nname = \"example.com/b\"\nclass = \"gpu\"\n[[resource]]\nname = \"example.com/a\"\nshares = 3\n"
	if got, want := names(loadWith(t, map[string]string{"m.toml": files, "conf.d/a.toml": drop})), append(own, rest...); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	none := "builtin = false\n" + strings.Replace(files, "shares", "class = \"gpu\"\nshares", 1)
	if got := names(loadWith(t, map[string]string{"m.toml": none, "conf.d/a.toml": drop})); !slices.Equal(got, own) {
		t.Errorf("without the built-in resources: %q, want %q", got, own)
	}
	if got := names(loadWith(t, map[string]string{"m.toml": "", "conf.d/a.toml": "builtin = false"})); len(got) != 0 {
		t.Errorf("nothing at all: %q", got)
	}
}

// The kubelet's two directories have one parent, so pod_resources follows device_plugins unless a file sets it.
func TestPodResourcesFollow(t *testing.T) {
	const moved, own = "[paths]\ndevice_plugins = \"/a/kubelet/device-plugins\"\n", "[paths]\npod_resources = \"/b/s.sock\"\n"
	for _, test := range []struct{ main, drop, want string }{
		{"", "", "/var/lib/kubelet/pod-resources/kubelet.sock"},
		{moved, "", "/a/kubelet/pod-resources/kubelet.sock"},
		{"", moved, "/a/kubelet/pod-resources/kubelet.sock"},
		{own, moved, "/b/s.sock"},
		{moved, own, "/b/s.sock"},
		{moved + "pod_resources = \"/b/s.sock\"\n", "", "/b/s.sock"},
		{"[paths]\ndevice_plugins = \"/plugins\"\n", "", "/pod-resources/kubelet.sock"},
	} {
		if got := loadWith(t, map[string]string{"m.toml": test.main, "conf.d/a.toml": test.drop}).Paths.PodResources; got != test.want {
			t.Errorf("%q and %q: %q, want %q", test.main, test.drop, got, test.want)
		}
	}
}

// A built-in resource is overridden key by key. The other keys stay.
func TestOverrideBuiltIn(t *testing.T) {
	want := find(t, config.Default(), "nvidia.com/gpu")
	want.Shares, want.Optional, want.Reset.Method = 4, false, config.None // shared, so that auto has no effect
	got := find(t, good(t, "[[resource]]\nname = \"nvidia.com/gpu\"\nshares = 4\n"), "nvidia.com/gpu")
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n%+v, want\n%+v", got, want)
	}
	got = find(t, good(t, "[[resource]]\nname = \"gpu.intel.com/xe\"\nmatch = { DRIVER = \"xe\" }\n"), "gpu.intel.com/xe")
	if want := map[string]string{"DRIVER": "xe"}; !reflect.DeepEqual(got.Match, want) {
		t.Errorf("match %q, want %q", got.Match, want)
	}
}

// The disks are off until a file configures them with a scrub, which may be in another file.
func TestDisksAreOffUntilNamed(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"in one file":     {"m.toml": "[[resource]]\nname = \"metalplug.io/nvme\"\nreset.scrub = \"zero\"\n"},
		"in two files":    {"m.toml": "[[resource]]\nname = \"metalplug.io/nvme\"\n", "conf.d/a.toml": "[[resource]]\nname = \"metalplug.io/nvme\"\nreset = { scrub = \"zero\" }"},
		"overridden none": {"m.toml": "[[resource]]\nname = \"metalplug.io/nvme\"\nreset.scrub = \"none\"", "conf.d/a.toml": "[[resource]]\nname = \"metalplug.io/nvme\"\nreset = { scrub = \"zero\" }"},
	} {
		if r := find(t, loadWith(t, files), "metalplug.io/nvme"); r.Class != "nvme" || r.Reset.Scrub != "zero" || r.Optional {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if slices.Contains(names(config.Default()), "metalplug.io/nvme") {
		t.Error("disks are offered without a word of the operator")
	}
}

// Keys of the tables [resource.reset] and [resource.units] are overridden separately.
func TestOverrideNestedKeys(t *testing.T) {
	main := disk + "[resource.reset]\nscrub = \"zero\"\nwhen = \"release\"\n[resource.units]\ninit = \"a@.service\"\nstart = \"a@.service\"\n"
	c := loadWith(t, map[string]string{
		"m.toml": main, "conf.d/a.toml": "[[resource]]\nname = \"example.com/x\"\nreset.scrub = \"format\"\nunits.start = \"\"\n",
	})
	r := find(t, c, "example.com/x")
	if r.Reset.Scrub != "format" || r.Reset.When != config.WhenRelease || r.Reset.Timeout != time.Hour || r.Units != (config.Units{Init: "a@.service"}) {
		t.Errorf("%+v", r)
	}
}

// A built-in name yields to another plugin, even if a file overrides a key, unless takeover is set.
func TestYields(t *testing.T) {
	c := good(t, `
[[resource]]
name = "amd.com/gpu"
shares = 2
[[resource]]
name = "nvidia.com/gpu"
takeover = true
[[resource]]
name = "example.com/x"
class = "gpu"
[[resource]]
name = "metalplug.io/nvme"
reset.scrub = "none"
`)
	for name, want := range map[string]bool{
		"xilinx.com/fpga": true, "amd.com/gpu": true, "metalplug.io/nvme": true, "nvidia.com/gpu": false, "example.com/x": false,
	} {
		if got := find(t, c, name).Yields(); got != want {
			t.Errorf("%s yields: %v", name, got)
		}
	}
}

// Only the hardware shows which block devices a resource of class node matches without naming them.
func TestScrubUnset(t *testing.T) {
	for text, want := range map[string]bool{
		node + "match.DEVNAME = \"/dev/x*\"\n":                          true,
		node + "match.DEVNAME = \"/dev/x*\"\nreset.scrub = \"none\"\n":  false,
		node + "match.DEVNAME = \"/dev/x*\"\nreset.scrub = \"zero\"\n":  false,
		node + "match.SUBSYSTEM = \"block\"\nreset.scrub = \"none\"\n":  false,
		node + "match.DEVNAME = \"/dev/x*\"\nreset.method = \"none\"\n": true,
		valid: false,
	} {
		if r := good(t, text).Resources[0]; r.Reset.ScrubUnset != want || (r.Rule().Scrub == device.ScrubUnset) != want {
			t.Errorf("%s: %v", text, r.Reset.ScrubUnset)
		}
	}
}
