//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

// This file has the steps of a story, and saves the state of a machine after a failure.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Step runs a part of the story as a subtest, which fails if the machine cannot run a command of the step. It reports
// whether the step succeeded.
func (m *Machine) Step(t *testing.T, name string, step func(t *testing.T)) bool {
	return t.Run(name, func(t *testing.T) {
		outer := m.t
		m.t = t
		defer func() {
			if t.Failed() {
				told.keep(t.Name(), m.account())
			}
			m.t = outer
		}()
		step(t)
	})
}

// account returns the state of the machine. It includes the list of devices from metalplugctl, and the ends of the logs of
// the device manager and the daemon.
func (m *Machine) account() string {
	var b strings.Builder
	for _, argv := range [][]string{
		{"metalplugctl", "list", "--all"},
		{"journalctl", "--unit", "metalplugd", "--output", "short-precise", "--no-pager", "--lines", "20"},
	} {
		r, err := m.guest.run(nil, accountTimeout, argv...)
		fmt.Fprintf(&b, "%s:\n%s%s", strings.Join(argv[:2], " "), r.Stdout, r.Stderr)
		if err != nil {
			fmt.Fprintln(&b, err)
		}
	}
	if m.kubelet != nil {
		lines := m.kubelet.Lines(0)
		b.WriteString("device manager:\n")
		for _, l := range lines[max(0, len(lines)-10):] {
			fmt.Fprintf(&b, "%.300s\n", l.Text)
		}
	}
	return b.String()
}

// accountTimeout is the maximum time to get the state of a machine after a failure.
const accountTimeout = 30 * time.Second

// keepLogs copies the console log and the journal to the folder METALPLUG_VM_LOGS, if it is set.
func (m *Machine) keepLogs() {
	dir := os.Getenv("METALPLUG_VM_LOGS")
	if dir == "" {
		return
	}
	console, err := os.ReadFile(m.path("console"))
	if err != nil {
		m.t.Logf("keep the logs: %v", err)
	}
	journal, err := m.guest.run(nil, 30*time.Second, "journalctl", "--no-pager", "--output", "short-precise")
	if err != nil {
		m.t.Logf("keep the logs: %v", err)
	}
	name := filepath.Join(dir, strings.ReplaceAll(m.t.Name(), "/", "_"))
	for suffix, content := range map[string][]byte{".console": console, ".journal": []byte(journal.Stdout)} {
		if err := os.WriteFile(name+suffix, content, 0o644); err != nil {
			m.t.Logf("keep the logs: %v", err)
		}
	}
}

// tail returns the end of a file of the machine on this host.
func (m *Machine) tail(name string, lines int) string {
	content, err := os.ReadFile(m.path(name))
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
