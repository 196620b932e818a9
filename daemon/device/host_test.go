// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"errors"
	"os"
	"path/filepath"
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
