// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// ctl runs the program without the configuration of this machine.
func ctl(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), args, &out, &err)
	return code, out.String(), err.String()
}

// TestUsage runs the commands in testdata/usage.txt.
func TestUsage(t *testing.T) {
	t.Setenv("METALPLUG_SOCKET", "")
	transcript(t, "usage.txt", func(args ...string) (int, string, string) { return ctl(t, args...) })
}

// transcript runs the commands of a transcript, and compares their output and exit codes with the transcript. It replaces the parts
// that change in each run.
func transcript(t *testing.T, name string, ctl func(args ...string) (code int, stdout, stderr string), changing ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for line := range strings.Lines(string(text)) {
		command, ok := strings.CutPrefix(line, "$ metalplugctl ")
		if !ok {
			continue
		}
		code, stdout, stderr := ctl(words(command)...)
		fmt.Fprintf(&got, "%s%s%sexit %d\n\n", line, stdout, stderr, code)
	}
	golden(t, name, got.String(), changing...)
}

// words splits a command line. An argument can be empty.
func words(command string) []string {
	all := strings.Fields(command)
	for i := range all {
		if all[i] == `""` {
			all[i] = ""
		}
	}
	return all
}

// TestHelp checks that each command has a help text, that the text fits into 80 columns, and that each flag names its
// value.
func TestHelp(t *testing.T) {
	_, stdout, _ := ctl(t, "--help")
	_, list, _ := strings.Cut(stdout, "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	commands := [][]string{{"--help"}}
	for line := range strings.Lines(list) {
		if name := strings.Fields(line)[0]; name != "help" && name != "completion" {
			commands = append(commands, []string{name, "--help"})
		}
	}
	if len(commands) < 10 {
		t.Fatalf("commands: %q", commands)
	}
	for _, args := range commands {
		code, stdout, stderr := ctl(t, args...)
		if code != exitOK || stderr != "" || strings.HasPrefix(stdout, "Usage:") || strings.Contains(stdout, " string ") {
			t.Errorf("%q: exit %d, %s\n%s", args, code, stderr, stdout)
		}
		for line := range strings.Lines(stdout) {
			if len(line) > 81 {
				t.Errorf("%q: wider than 80 columns: %s", args, line)
			}
		}
	}
}

// TestCompletion checks the values that the shell completes for each flag with a fixed set.
func TestCompletion(t *testing.T) {
	for _, test := range []struct{ line, want string }{
		{"list -o ", "json"},
		{"preview --recording ", "gpu-server\ta GPU server"},
		{"topology --recording ", "edge-box\t"},
		{"preview --allocate ", "nvidia.com/gpu"},
		{"preview --log-level ", "notice"},
		{"reset x --scrub ", "crypto-erase"},
		{"adopt x --scrub ", "zero"},
	} {
		code, stdout, _ := ctl(t, append([]string{"__complete"}, strings.Split(test.line, " ")...)...)
		if code != exitOK || !strings.Contains(stdout, test.want) {
			t.Errorf("%s: exit %d, %q", test.line, code, stdout)
		}
	}
}

// withDisks returns a configuration that offers the disks.
func withDisks(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disks.toml")
	save(t, file, nvmeOffered)
	return file
}

// TestPreview previews recordings. A vendor unit does not run, so the devices appear as if it had initialised them.
func TestPreview(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := errors.Join(unix.Mkfifo("fifo", 0o600), os.Mkdir("nvme-blank", 0o700)); err != nil {
		t.Fatal(err)
	}
	save(t, "empty", "# nothing")
	save(t, "units.toml", "[[resource]]\nname = \"nvidia.com/gpu\"\nunits.init = \"none@.service\"\n")
	save(t, "cdi.toml", "[[resource]]\nname = \"nvidia.com/gpu\"\ninject = \"cdi\"\n")
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"--recording gpu-server --config units.toml", exitOK, "nvidia.com/gpu           8         8"},
		{"--recording gpu-server --config cdi.toml --allocate nvidia.com/gpu=1", exitOK, "  cdi     metalplug.nvidia.com/gpu=GPU-"},
		{"--recording gpu-server --config cdi.toml --allocate nvidia.com/gpu=1 -o json", exitOK, `"cdiDevices": [`},
		{"--recording gpu-server --allocate nvidia.com/gpu=9", exitProblem, "A container that requests nvidia.com/gpu=9 gets nothing"},
		{"--recording gpu-server --allocate nvidia.com/gpu=9", exitProblem, "metalplugctl: allocate 9 of nvidia.com/gpu: too few"},
		{"--recording empty", exitOK, "--recording edge-box"},
		{"--recording fifo", exitProblem, "not a regular file"},
		{"--recording /dev/zero", exitProblem, "not a regular file"},
		{"--recording nvme-blank", exitOK, "Recording nvme-blank: "}, // a directory does not hide the bundled recording
	} {
		code, stdout, stderr := ctl(t, append([]string{"preview"}, strings.Fields(test.args)...)...)
		if code != test.code || !strings.Contains(stdout+stderr, test.want) {
			t.Errorf("%s: exit %d, no %q in\n%s%s", test.args, code, test.want, stdout, stderr)
		}
		if strings.Contains(test.args, "cdi.toml") && strings.Contains(stdout, "  node  ") {
			t.Errorf("%s: a container gets nodes:\n%s", test.args, stdout)
		}
	}
	t.Setenv("TMPDIR", "/none")
	if code, _, stderr := ctl(t, "preview", "--recording", "empty"); code != exitProblem || !strings.Contains(stderr, "TMPDIR") {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

// TestChecksAgree checks that check reports the same files and lines as metalplugd for invalid configurations.
func TestChecksAgree(t *testing.T) {
	file := filepath.Join(t.TempDir(), "metalplug.toml")
	text := "[[resource]]\nname = \"example.org/n\"\nclass = \"gpu\"\nunits.init = \"x.service\"\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	want := file + ":4: resource.units.init: \"x.service\" is not a template unit like \"name@.service\"; write init = \"name@.service\"\n"
	for _, args := range [][]string{{"check", file}, {"preview", "--config", file}} {
		if code, _, stderr := ctl(t, args...); code != exitProblem || stderr != want {
			t.Errorf("%v: exit %d, %q, want %q", args, code, stderr, want)
		}
	}
	code, stdout, stderr := ctl(t, "check", file, "-o", "json")
	var checked checkedFiles
	if err := json.Unmarshal([]byte(stdout), &checked); code != exitProblem || stderr != "" || err != nil || checked.Problems.Error()+"\n" != want {
		t.Errorf("exit %d, %v: %q%q, want %q", code, err, stdout, stderr, want)
	}
}

// save replaces a recording in one step.
func save(t *testing.T, file, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(file+".new", []byte(text+"\n# end\n"), 0o600), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
}
