// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/udev"
)

func paths(all []*Subject) string {
	var names []string
	for _, s := range all {
		names = append(names, s.udev.SysPath)
	}
	return strings.Join(names, " ")
}

func TestSubjects(t *testing.T) {
	var all subjects
	// A name may continue with characters that sort before ("-") or after (":") the slash.
	for _, path := range []string{"/b", "/a/b/c", "/a", "/a-x", "/a/b", "/a/b-x", "/a:x", "/a/bb", "/c/d/e"} {
		all.insert(&Subject{udev: &udev.Device{SysPath: path}})
	}
	for path, want := range map[string]string{
		"/a":     "/a /a/b /a/b-x /a/b/c /a/bb",
		"/a/b":   "/a /a/b /a/b/c",
		"/a/b/c": "/a /a/b /a/b/c",
		"/a/x/y": "/a",
		"/c/d":   "/c/d/e",
		"/":      "",
		"":       "/a /a-x /a/b /a/b-x /a/b/c /a/bb /a:x /b /c/d/e",
	} {
		if got := paths(slices.Collect(all.related(path))); got != want {
			t.Errorf("%q is related to %q, want %q", path, got, want)
		}
		for most := range strings.Fields(want) {
			n := 0
			for range all.related(path) {
				if n++; n > most {
					break
				}
			}
			if n != most+1 {
				t.Errorf("%q: %d came, %d were wanted", path, n, most+1)
			}
		}
	}
}

func TestSubjectsComeAndGo(t *testing.T) {
	var all subjects
	add := func(path string) *Subject {
		s := &Subject{udev: &udev.Device{SysPath: path}}
		all.insert(s)
		return s
	}
	b, a := add("/b"), add("/a")
	if all.get("/a") != a || all.get("/b") != b || all.get("/c") != nil {
		t.Errorf("there are %s", paths(all))
	}
	all.remove("/c")
	all.remove("/a")
	if all.get("/a") != nil || all.get("/b") != b || len(all) != 1 {
		t.Errorf("there are %s", paths(all))
	}
}
