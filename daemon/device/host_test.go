// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// tree makes a machine with an AMD GPU, NUMA node 1 and the additions of a test.
func tree(t *testing.T) (h *device.Host, gpu string) {
	t.Helper()
	h, devices := loadMachine(t, "gpu-amd")
	for _, d := range devices {
		if d.Subsystem == "pci" {
			gpu = d.SysPath
		}
	}
	return h, gpu
}

func write(t *testing.T, h *device.Host, name, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(h.Path(name)), 0o755), os.WriteFile(h.Path(name), []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func TestHostReads(t *testing.T) {
	h, gpu := tree(t)
	write(t, h, gpu+"/blank", "")
	write(t, h, gpu+"/long", strings.Repeat("x", 5000))
	write(t, h, gpu+"/hex", " 0x1f\n")
	write(t, h, gpu+"/text", "many\n")
	for name, want := range map[string]string{"unique_id": "4b1a2c3d5e6f7081", "blank": "", "long": strings.Repeat("x", sysfs.AttrSize)} {
		if got, err := h.Attr(gpu, name); err != nil || got != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got, err := h.ReadAll(gpu + "/long"); err != nil || len(got) != 5000 {
		t.Errorf("long, whole: %d bytes, %v", len(got), err)
	}
	if got, err := h.Int(gpu, "hex"); err != nil || got != 31 {
		t.Errorf("hex: %d, %v", got, err)
	}
	if _, err := h.Int(gpu, "text"); err == nil || err.Error() != "read "+gpu+`/text: "many" is not a number` {
		t.Errorf("text: %v", err)
	}
	for _, err := range []error{second(h.Attr(gpu, "none")), second(h.ReadAll("/proc/none")), second(h.Int(gpu, "none"))} {
		if !errors.Is(err, device.ErrGone) || !errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), h.Sys) {
			t.Errorf("none: %v", err)
		}
	}
	if err := second(h.Attr(gpu, "drm")); err == nil || errors.Is(err, device.ErrGone) {
		t.Errorf("a directory: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestHostLinks(t *testing.T) {
	h, gpu := tree(t)
	if err := os.Symlink("/", h.Path(gpu+"/outside")); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ what, got, want string }{
		{"driver", h.Link(gpu, "driver"), "amdgpu"},
		{"no links", h.Link(gpu, "none") + h.Link(gpu, "unique_id"), ""},
		{"resolved", h.Resolve("/sys/bus/pci/devices/0000:05:00.0"), gpu},
		{"without a target", h.Resolve(gpu + "/driver/none"), ""},
		{"outside of sysfs", h.Resolve(gpu + "/outside"), ""},
		{"missing", h.Resolve("/sys/none"), ""},
		{"properties", h.Properties(gpu)["PCI_ID"] + " " + h.Properties(gpu)["DRIVER"], "1002:74A1 amdgpu"},
		{"names", strings.Join(h.Names(gpu+"/drm"), " "), "card1 renderD128"},
	} {
		if test.got != test.want {
			t.Errorf("%s: %q, want %q", test.what, test.got, test.want)
		}
	}
	if names, properties := h.Names(gpu+"/none"), h.Properties(gpu+"/none"); len(names) > 0 || len(properties) > 0 {
		t.Errorf("in a missing directory: %q, %q", names, properties)
	}
}

func TestHostNUMANode(t *testing.T) {
	h, gpu := tree(t)
	card := gpu + "/drm/card1"
	check := func(what, path string, want int) {
		t.Helper()
		if got := h.NUMANode(path); got != want {
			t.Errorf("%s: node %d, want %d", what, got, want)
		}
	}
	check("its own", gpu, 1)
	check("of the device above", card, 1)
	check("none", "/sys/devices/virtual/kfd/kfd", -1)
	write(t, h, gpu+"/numa_node", "-1\n")
	check("unknown", card, -1)
	write(t, h, filepath.Dir(gpu)+"/numa_node", "3\n")
	check("unknown, but known further up", card, 3)
	write(t, h, "/sys/devices/system/node/node1/cpulist", "0-31\n")
	check("not online", card, -1)
	write(t, h, gpu+"/numa_node", "1\n")
	check("online", card, 1)
}

// TestInstance checks that a device has another instance number than the device that it replaces.
func TestInstance(t *testing.T) {
	root := t.TempDir()
	h := &device.Host{Tree: sysfs.Tree{Sys: root}}
	if n := h.Instance("/sys/devices/x"); n != 0 {
		t.Errorf("what is not there is instance %d", n)
	}
	for _, dir := range []string{"devices/x", "devices/next"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	before := h.Instance("/sys/devices/x")
	if before == 0 || h.Instance("/sys/devices/x") != before {
		t.Errorf("it is instance %d, and then another", before)
	}
	for _, move := range [][2]string{{"devices/x", "gone"}, {"devices/next", "devices/x"}} {
		if err := os.Rename(filepath.Join(root, move[0]), filepath.Join(root, move[1])); err != nil {
			t.Fatal(err)
		}
	}
	if after := h.Instance("/sys/devices/x"); after == 0 || after == before {
		t.Errorf("before it is instance %d, after that %d", before, after)
	}
}

// longestID is the maximum ID length that the kubelet accepts, 63 characters, less the suffix of a share.
const longestID = 58

// cdiName matches the device names that CDI allows (SPEC.md of the Container Device Interface).
var cdiName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$`)

func TestMakeID(t *testing.T) {
	for _, test := range []struct {
		parts []string
		want  string
	}{
		{[]string{"gpu", "0000:3b:00.0"}, "gpu-0000:3b:00.0"},
		{[]string{"nvme", "eui.0025385b61b01234"}, "nvme-eui.0025385b61b01234"},
		{[]string{"node", "A_B"}, "node-A_B"},
		{[]string{"node", "A B"}, "node-A-B-5f12933f"},
		{[]string{"node", "A/B"}, "node-A-B-4d885a50"},
		{[]string{"node", "größe"}, "node-gr--e-75abf301"},
		{[]string{"node", ""}, "node-f8dadb74"},
		{[]string{"node", strings.Repeat("x", 53)}, "node-" + strings.Repeat("x", 53)},
		{[]string{"node", strings.Repeat("x", 54)}, "node-" + strings.Repeat("x", 44) + "-6de08a16"},
		{[]string{"node", "fe80::1"}, "node-fe80:-1-21a9601a"},
		{[]string{"node", ":::", "::"}, "node-7c6c9621"},
		{[]string{"node", "a:", ":b"}, "node-a:-:b"},
		{[]string{""}, "e3b0c442"},
		{[]string{"//"}, "a2c23396"},
	} {
		if got := device.MakeID(test.parts...); got != test.want {
			t.Errorf("MakeID(%q) = %q, want %q", test.parts, got, test.want)
		}
	}
}

func FuzzMakeID(f *testing.F) {
	for _, seed := range []string{"", "-", "0000:3b:00.0", "::", ":", "a:::b", "a b", "\xff\xfe", "ß", strings.Repeat("a/", 2048)} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		id := device.MakeID(a, b)
		if len(id) > longestID || !cdiName.MatchString(id) || strings.Contains(id, "::") {
			t.Fatalf("MakeID(%q, %q) = %q", a, b, id)
		}
		if again := device.MakeID(a, b); again != id {
			t.Fatalf("MakeID(%q, %q) = %q, then %q", a, b, id, again)
		}
	})
}
