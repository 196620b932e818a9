// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestExitCodes(t *testing.T) {
	good := write(t, "metalplug.toml", "[[resource]]\nname = \"example.org/kvm\"\nclass = \"node\"\nmatch = { DEVNAME = \"/dev/kvm\" }\n")
	bad := write(t, "metalplug.toml", "[paths]\nstat = \"/x\"\n")
	gone := write(t, "metalplug.toml", fmt.Sprintf("hardware.source = \"recording:gone\"\n[paths]\ndevice_plugins = %q\nstate = %q\nrun = %q\n",
		t.TempDir(), t.TempDir(), t.TempDir()))
	units := write(t, "metalplug.toml", "[[resource]]\nname = \"example.org/nvme\"\nclass = \"gpu\"\n[resource.units]\ninit = \"x@.service\"\n")
	tests := []struct {
		name string
		args []string
		code int
		text string // expected in the output
	}{
		{"version", []string{"--version"}, exitOK, "metalplugd unreleased (go"},
		{"help", []string{"--help"}, exitOK, "-log-level LEVEL"},
		{"what help says", []string{"--help"}, exitOK, "78 invalid configuration"},
		{"good configuration", []string{"--check", "--config", good}, exitOK, ""},
		{"bad configuration", []string{"--check", "--config", bad}, exitConfig, bad + ":2: paths.stat: "},
		{"bad configuration, run", []string{"--config", bad}, exitConfig, bad + ":2: paths.stat: "},
		{"no recording", []string{"--check", "--config", gone}, exitConfig, gone + ":1: hardware.source: open recording "},
		{"no recording, run", []string{"--config", gone}, exitConfig, gone + ":1: hardware.source: open recording "},
		{"a unit", []string{"--check", "--config", units}, exitOK, ""},
		{"no such file", []string{"--check", "--config", "/nonexistent/metalplug.toml"}, exitConfig, "/nonexistent/metalplug.toml"},
		{"no name", []string{"--check", "--config", ""}, exitConfig, `"": the name of the file is empty; name a file, or omit it to use /etc/metalplug/metalplug.toml`},
		{"a directory", []string{"--check", "--config", "/etc"}, exitConfig, "/etc: is not a regular file; name a file such as /etc/metalplug/metalplug.toml"},
		{"unknown flag", []string{"--nonsense"}, 2, `metalplugd: unknown flag: --nonsense`},
		{"flag without a name", []string{"--=x"}, 2, `metalplugd: unknown flag: --=x`},
		{"no value", []string{"--config"}, 2, "metalplugd: missing value: --config\nSee 'metalplugd --help'.\n"},
		{"no boolean", []string{"--check=maybe"}, 2, `metalplugd: invalid "maybe" for --check: must be true or false`},
		{"argument", []string{"now"}, 2, `metalplugd: unexpected argument: "now"`},
		{"log level", []string{"--log-level", "loud"}, 2, `metalplugd: invalid log level "loud": must be debug, `},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			if code := run(test.args, &out, &out); code != test.code {
				t.Errorf("exit %d, want %d", code, test.code)
			}
			if !strings.Contains(out.String(), test.text) {
				t.Errorf("%q is not in %q", test.text, out.String())
			}
		})
	}
}

func TestExitCodeOfFailedPart(t *testing.T) {
	dir := t.TempDir()
	recording := write(t, "recording", "P: /devices/virtual/x/x0\nE: SUBSYSTEM=x\n")
	config := write(t, "metalplug.toml", fmt.Sprintf("[paths]\ndevice_plugins = %q\nstate = %q\nrun = %q\n[hardware]\nsource = \"recording:%s\"\n",
		dir, t.TempDir(), t.TempDir(), recording))
	plugins, err := os.Open(dir)
	if err == nil {
		err = unix.Flock(int(plugins.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer plugins.Close()
	var out bytes.Buffer
	if code := run([]string{"--config", config}, &out, &out); code != exitFailed {
		t.Errorf("exit %d, want %d: %s", code, exitFailed, out.String())
	}
	if !strings.Contains(out.String(), "another metalplugd uses this directory") {
		t.Errorf("no reason: %s", out.String())
	}
}
