// SPDX-License-Identifier: Apache-2.0

package recording_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/udev/recording"
)

func TestParseErrors(t *testing.T) {
	const head = "P: /devices/a\nE: SUBSYSTEM=x\n"
	for name, test := range map[string]struct{ text, want string }{
		"no device":             {"E: A=b\n", `line 1: expected "P: /devices/…" to begin a device, found "E: A=b"`},
		"no tag":                {head + "rubbish\n", `line 3: expected a letter, a colon and a space, found "rubbish"`},
		"no blank":              {head + "A:x=y\n", `line 3: expected a letter, a colon and a space`},
		"unknown tag":           {head + "Z: x\n", `line 3: expected one of P: N: S: E: A: H: L: F:, found "Z:"`},
		"no subsystem":          {"\nP: /devices/a\n", `line 2: device "/devices/a": expected a line "E: SUBSYSTEM=…"`},
		"two in a block":        {head + "P: /devices/b\n", `line 3: expected a blank line before the next device`},
		"twice":                 {head + "\n" + head, `line 4: expected each device once, found "/devices/a" again`},
		"path elsewhere":        {"P: /etc/passwd\n", `line 1: expected a path that begins with /devices/`},
		"path up":               {"P: /devices/../../etc\n", `line 1: expected a plain path, found "sys/devices/../../etc"`},
		"long name":             {"P: /devices/" + strings.Repeat("x", 4096) + "\n", `line 1: expected a plain path, found "sys/devices/xxxxxxxx`},
		"deep":                  {"P: /devices/" + strings.Repeat("x/", 1<<20) + "\n", `line 1: expected a plain path, found "sys/devices/x/x/x/x/`},
		"long element":          {"P: /devices/" + strings.Repeat("x", 256) + "\n", `line 1: expected a plain path, found "sys/devices/xxxxxxxx`},
		"property":              {head + "E: X\n", `line 3: expected NAME=VALUE, found "X"`},
		"property NUL":          {head + "E: X=\x00\n", `line 3: expected no NUL`},
		"attribute":             {head + "A: x\n", `line 3: expected NAME=VALUE, found "x"`},
		"attribute twice":       {head + "A: x=1\nA: x=2\n", `line 4: expected each file once, found /sys/devices/a/x again`},
		"attribute absolute":    {head + "A: /etc/x=1\n", `line 3: expected a plain path, found "sys/devices/a//etc/x"`},
		"attribute up":          {head + "A: ../x=1\n", `line 3: expected a plain path, found "sys/devices/a/../x"`},
		"attribute NUL":         {head + "A: x\x00=1\n", `line 3: expected no NUL`},
		"attribute in a file":   {head + "A: x=1\nA: x/y=2\n", `line 4: expected a directory at /sys/devices/a/x, found a file or a link`},
		"attribute in a link":   {head + "L: x=..\nA: x/y=2\n", `line 4: expected a directory at /sys/devices/a/x, found a file or a link`},
		"attribute is a device": {head + "\nP: /devices/a/b\nE: SUBSYSTEM=x\n\nP: /devices/c\nE: SUBSYSTEM=x\nA: x=\n\nP: /devices/c/x/y\nE: SUBSYSTEM=x\n", `line 11: expected a directory at /sys/devices/c/x, found a file or a link`},
		"escape":                {head + `A: x=a\d` + "\n", `line 3: attribute "x": expected one of \n \t \r \b \f \v \" \\ and \ooo, found "\\d"`},
		"escape too big":        {head + `A: x=\777` + "\n", `line 3: attribute "x": expected one of`},
		"odd hex":               {head + "H: x=abc\n", `line 3: attribute "x": expected pairs of hexadecimal digits, found "abc"`},
		"node of another":       {head + "N: x\n\nP: /devices/b\nE: SUBSYSTEM=x\nN: x\n", `line 7: expected each file once, found /dev/x again`},
		"target absolute":       {head + "L: x=/etc\n", `line 3: expected a plain path, found "/etc"`},
		"target outside":        {head + "L: x=../../..\n", `line 3: expected a target inside the recording, found "../../.."`},
		"target up again":       {head + "L: x=y/../../../..\n", `line 3: expected a target inside the recording, found "y/../../../.."`},
		"target empty":          {head + "L: x=\n", `line 3: expected a plain path, found ""`},
		"file elsewhere":        {"F: /etc/passwd=x\n", `line 1: expected a path below /proc or /dev, found "/etc/passwd"`},
		"file up":               {"F: /proc/../etc=x\n", `line 1: expected a plain path, found "proc/../etc"`},
		"file twice":            {"F: /proc/a=x\nF: /proc/a=y\n", `line 2: expected each file once, found /proc/a again`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := recording.Parse([]byte(test.text))
			if err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("error %v\nwant  %s", err, test.want)
			}
		})
	}
}

// TestWindowsLineEnds parses text with the line ends that web forms put into bug reports.
func TestWindowsLineEnds(t *testing.T) {
	r := mustParse(t, strings.ReplaceAll(disk, "\n", "\r\n"))
	if len(r.Devices()) != 2 || r.Devices()[0].Subsystem != "pci" {
		t.Errorf("devices %+v", r.Devices())
	}
}

// FuzzParse checks that every valid recording makes a tree inside its root, and that no link leads out of it. Other
// tests use large trees. Go's fuzzer kills a process that spends 10 s on one input (internal/fuzz/worker.go), which
// under load was enough time for the hundreds of files of a large tree.
func FuzzParse(f *testing.F) {
	const largest = 8 << 10
	nothing, err := recording.Parse(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(disk + partition))
	for _, b := range recording.Bundled() {
		if len(b.Text) <= largest {
			f.Add(b.Text)
		}
	}
	f.Add([]byte("P: /module/x\nE: SUBSYSTEM=module\nL: a=..\nL: b=../x/a\nS: a\nN: a\n"))
	f.Add([]byte("P: /devices/x\nE: SUBSYSTEM=..\nE: MAJOR=../1\nE: DEVLINKS=/dev/../x /etc/x /x\nN: y\n"))
	f.Add([]byte("P: /devices/x\nE: SUBSYSTEM=pci\nL: driver=../../bus/pci/drivers/a\nE: MAJOR=0\nE: MINOR=0\nN: x\nS: char/0:0/z\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := recording.Parse(text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "line ") {
				t.Fatalf("no line in %q", err)
			}
			return
		}
		if len(text) > largest {
			return
		}
		outer := t.TempDir()
		root := filepath.Join(outer, "root")
		if err := r.Write(root); err != nil {
			t.Fatal(err)
		}
		checkInside(t, outer, root)
		if _, err := r.Update(root, nothing); err != nil {
			t.Fatal(err)
		}
		if left := listing(t, root); len(left) != 3 {
			t.Fatalf("left over: %v", left)
		}
	})
}

func checkInside(t *testing.T, outer, root string) {
	if entries, err := os.ReadDir(outer); err != nil || len(entries) != 1 {
		t.Fatalf("beside the root: %v, %v", entries, err)
	}
	for name, text := range listing(t, root) {
		if !strings.HasPrefix(text, "-> ") {
			continue
		}
		if real, err := filepath.EvalSymlinks(filepath.Join(root, name)); err == nil && !strings.HasPrefix(real, root+"/") {
			t.Fatalf("%s leads to %s", name, real)
		}
	}
}
