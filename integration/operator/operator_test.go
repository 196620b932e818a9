// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/leak"
)

// programs is the directory of the programs that TestMain has built for the tests.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "metalplug-programs-")
	if err == nil {
		err = build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.RemoveAll(dir)
		os.Exit(1)
	}
	programs = dir
	status := leak.Main(m)
	os.RemoveAll(dir)
	os.Exit(status)
}

// build builds the programs like a release.
func build(dir string) error {
	c := exec.Command("go", "build", "-trimpath", "-ldflags", "-X main.version=1.0", "-o", dir+"/", "./cmd/metalplugd", "./cmd/metalplugctl")
	c.Dir = "../.."
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w: %s", err, out)
	}
	return nil
}

// lookAtSources makes "go test" run a test again when the sources have changed, because it does not know which files
// the compiler reads.
func lookAtSources(t *testing.T) {
	t.Helper()
	for _, sources := range []string{"cgroup", "cmd", "daemon", "systemd", "udev"} {
		err := filepath.WalkDir("../../"+sources, func(name string, _ fs.DirEntry, err error) error {
			if err == nil {
				_, err = os.Stat(name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestActsAsHelper checks that metalplugctl acts as a helper under the helper's name, and as the interpreter of an installed script.
// No other first argument makes it a helper.
func TestActsAsHelper(t *testing.T) {
	lookAtSources(t)
	const reset, unit = "/usr/libexec/metalplug/metalplug-reset", "/usr/libexec/metalplug/metalplug-unit"
	for _, test := range []struct {
		args []string // with the program's name, as the kernel passes them
		want string
		code int
	}{
		{[]string{reset, "--help"}, "metalplug-reset reads one disk", 0},
		{[]string{"metalplugctl", "metalplug-reset", reset, "--help"}, "metalplug-reset reads one disk", 0},
		{[]string{"metalplugctl", "metalplug-reset", "./metalplug-reset", "--help"}, "metalplug-reset reads one disk", 0},
		{[]string{"metalplugctl", "metalplug-reset", reset}, "metalplug-reset: standard input is not a socket", 1},
		{[]string{"metalplugctl", "metalplug-unit", unit, "--help"}, "metalplug-unit runs a unit", 0},
		{[]string{"metalplugctl", "metalplug-unit", unit, "--bogus"}, `metalplug-unit: unexpected argument: "--bogus"`, 2},
		{[]string{"metalplugctl", "metalplug-reset"}, `unknown command "metalplug-reset"`, 2},
		{[]string{"metalplugctl", "metalplug-reset", unit}, `unknown command "metalplug-reset"`, 2},
		{[]string{"metalplugctl", "list", "/usr/libexec/metalplug/list"}, "list", 2},
	} {
		c := exec.Command(filepath.Join(programs, "metalplugctl"))
		c.Args = test.args
		out, _ := c.CombinedOutput()
		if code := c.ProcessState.ExitCode(); code != test.code || !strings.Contains(string(out), test.want) {
			t.Errorf("%q: exit code %d, %s, want %d, %q", test.args, code, out, test.code, test.want)
		}
	}
}

// TestDiagnosis checks that each fault leads to a capacity of 0 or to too few devices, and that one command
// diagnoses the cause.
func TestDiagnosis(t *testing.T) {
	lookAtSources(t)
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			a, err := f.play(t.Context(), programs)
			if err != nil {
				t.Fatal(err)
			}
			if !f.checkAnswer(a) {
				t.Errorf("%q: exit %d, want %d with %q:\n%s", f.ask, a.code, f.code, f.cause, a.text)
			}
		})
	}
}

// TestShow checks that show counts and reports causes that are not diagnosed, and returns an error for a fault that cannot
// be prepared.
func TestShow(t *testing.T) {
	stopped := selectFaults([]string{"the daemon does not run"})
	if len(stopped) != 1 || len(selectFaults(nil)) != len(faults) || len(selectFaults([]string{"nonsense"})) != 0 {
		t.Fatalf("chosen are %d faults", len(stopped))
	}
	elsewhere := stopped[0]
	elsewhere.cause = "the moon"
	var out bytes.Buffer
	unnamed, err := show(t.Context(), &out, programs, append(stopped, elsewhere))
	if err != nil || unnamed != 1 {
		t.Errorf("%d are not named, %v", unnamed, err)
	}
	for _, want := range []string{"THE DAEMON DOES NOT RUN", "$ metalplugctl list", "=> it is named: systemctl", "=> NOT NAMED (exit 3, want 3): the moon", "1 of 2 faults"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	for name, f := range map[string]fault{
		"hardware that is not there":  {hardware: change{"no such text", ""}},
		"a configuration that is bad": {resources: "nonsense = 1\n"},
		"a command that is bad":       {before: []string{"nonsense"}},
	} {
		if _, err := show(t.Context(), &out, programs, []fault{f}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := show(t.Context(), &out, t.TempDir(), selectFaults([]string{"a disk is mounted"})); err == nil || !strings.Contains(err.Error(), "make") {
		t.Errorf("without the programs: %v", err)
	}
}
