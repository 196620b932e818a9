// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/metalplug/metalplug/integration/need"
)

func TestAccess(t *testing.T) {
	root := tree{t, t.TempDir()}
	root.write("devices/devices.list", "a *:* rwm\n")
	root.write("devices/kubepods/podx/"+id1+"/devices.list", "c *:* m\nb *:* m\nc 1:3 rwm\nc 136:* rwm\nb 259:1 r\n")
	root.write("devices/empty/devices.list", "")
	for path, want := range map[string][]Rule{
		"/":                     {{'a', Any, Any, "rwm"}},
		"/kubepods/podx/" + id1: {{'c', Any, Any, "m"}, {'b', Any, Any, "m"}, {'c', 1, 3, "rwm"}, {'c', 136, Any, "rwm"}, {'b', 259, 1, "r"}},
		"/empty":                nil,
	} {
		if got, err := Access(root.dir, path); err != nil || !slices.Equal(got, want) {
			t.Errorf("Access(%q) = %v, %v, want %v", path, got, err, want)
		}
	}
}

func TestAccessErrors(t *testing.T) {
	root := tree{t, t.TempDir()}
	root.write("outside/devices.list", "a *:* rwm\n")
	for _, path := range []string{"/nonexistent", "/../outside", "/..", "//x"} {
		if got, err := Access(root.dir, path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Access(%q) = %v, %v", path, got, err)
		}
	}
	for _, line := range []string{
		"\n", "c\n", "c 1:3\n", "c 1:3 \n", "c 1:3 x\n", "d 1:3 r\n", "cc 1:3 r\n", "c 1 r\n", "c x:3 r\n", "c 1:x r\n", "c 1:-1 r\n", " 1:3 r\n",
	} {
		root.write("devices/x/devices.list", "c 1:3 rwm\n"+line)
		if got, err := Access(root.dir, "/x"); err == nil || got != nil {
			t.Errorf("Access of %q = %v, %v", line, got, err)
		}
	}
	root.write(controllersFile, "cpu io memory\n")
	if got, err := Access(root.dir, "/x"); !errors.Is(err, errors.ErrUnsupported) || got != nil {
		t.Errorf("Access on version 2 = %v, %v, want %v", got, err, errors.ErrUnsupported)
	}
}

func TestRuleAllows(t *testing.T) {
	disk := Number{Block: true, Major: 1, Minor: 3}
	for _, c := range []struct {
		rule   Rule
		number Number
		access string
		want   bool
	}{
		{Rule{'a', Any, Any, "rwm"}, null, "rwm", true},
		{Rule{'a', Any, Any, "rwm"}, disk, "rwm", true},
		{Rule{'c', 1, 3, "rwm"}, null, "rw", true},
		{Rule{'c', 1, 3, "rwm"}, null, "", true},
		{Rule{'c', 1, 3, "rm"}, null, "rw", false},
		{Rule{'c', 1, 3, "rwm"}, disk, "r", false},
		{Rule{'b', 1, 3, "rwm"}, disk, "r", true},
		{Rule{'b', 1, 3, "rwm"}, null, "r", false},
		{Rule{'c', 1, Any, "rwm"}, null, "wr", true},
		{Rule{'c', Any, 3, "rwm"}, null, "r", true},
		{Rule{'c', 2, Any, "rwm"}, null, "r", false},
		{Rule{'c', 1, 4, "rwm"}, null, "r", false},
	} {
		if got := c.rule.Allows(c.number, c.access); got != c.want {
			t.Errorf("%+v.Allows(%v, %q) = %v", c.rule, c.number, c.access, got)
		}
	}
}

// TestAccessInARealCgroup: what the kernel writes.
func TestAccessInARealCgroup(t *testing.T) {
	const root = "/sys/fs/cgroup"
	dir, err := os.MkdirTemp(root+"/devices", "metalplug-test-*")
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := Access(root, "/"); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Access on version 2: %v", err)
		}
		return
	}
	if err != nil {
		need.Lacks(t, "root", "no cgroup of version 1 for this test: %v", err)
	}
	defer os.Remove(dir)
	for _, w := range []struct{ file, rule string }{{"devices.deny", "a"}, {"devices.allow", "c 1:3 rw"}, {"devices.allow", "b 259:* r"}} {
		if err := os.WriteFile(filepath.Join(dir, w.file), []byte(w.rule), 0); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Access(root, "/"+filepath.Base(dir))
	want := []Rule{{'c', 1, 3, "rw"}, {'b', 259, Any, "r"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("Access = %v, %v, want %v", got, err, want)
	}
}
