// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestKilledLeavesNothingForLong: the tree of a recording, which a daemon leaves that is killed, is gone with the next, and
// nothing but that daemon's lock stays in the end. What others have there stays, and what a link in the tree leads to.
func TestKilledLeavesNothingForLong(t *testing.T) {
	dir := t.TempDir()
	machine := write(t, "machine", "P: /devices/virtual/x/x0\nE: SUBSYSTEM=x\n")
	config := write(t, "metalplug.toml", fmt.Sprintf("[paths]\ndevice_plugins = %q\nstate = %q\nrun = %q\ncdi = %q\n[hardware]\nsource = \"recording:%s\"\n",
		dir+"/p", dir+"/s", dir+"/r", dir+"/c", machine))
	started(t, dir, config, syscall.SIGKILL)
	left := glob(t, dir+"/tmp/metalplug-recording-*")
	if len(left) != 1 {
		t.Fatalf("the killed one leaves %q", left)
	}
	if _, err := os.Stat(filepath.Join(left[0], "sys/devices/virtual/x/x0")); err != nil {
		t.Errorf("what is to be removed is elsewhere: %v", err)
	}
	foreign := map[string]bool{dir + "/r/started": true}
	for _, name := range []string{dir + "/foreign", dir + "/tmp/metalplug-recording-none", dir + "/r/metalplugd.recording"} {
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
		foreign[name] = true
	}
	if err := os.Symlink(dir, filepath.Join(left[0], "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(left[0], dir+"/tmp/metalplug-recording-link"); err != nil {
		t.Fatal(err)
	}
	foreign[dir+"/tmp/metalplug-recording-link"] = true
	started(t, dir, config, syscall.SIGTERM)
	for name := range foreign {
		if _, err := os.Lstat(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range append(glob(t, dir+"/tmp/*"), glob(t, dir+"/r/*")...) {
		if !foreign[name] {
			t.Errorf("%s is left", name)
		}
	}
}

// glob returns what a pattern matches.
func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// started runs metalplugd as a process of its own until it is ready, and then sends it a signal and waits for its end.
func started(t *testing.T, dir, config string, end os.Signal) {
	t.Helper()
	tmp := filepath.Join(dir, "tmp")
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command(os.Args[0], "--config", config)
	daemon.Env = append(os.Environ(), childEnv+"=1", "TMPDIR="+tmp)
	log, err := daemon.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	ready := false
	for lines := bufio.NewScanner(log); lines.Scan(); {
		fmt.Fprintln(&said, lines.Text())
		if !ready && strings.Contains(lines.Text(), "ready") {
			ready = true
			if err := daemon.Process.Signal(end); err != nil {
				t.Error(err)
			}
		}
	}
	_ = daemon.Wait() // how it ended was asked for
	if !ready {
		t.Fatalf("it did not become ready:\n%s", said.String())
	}
}
