//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"path/filepath"
	"strings"
)

// programs are metalplug's programs by folder, with their installation paths. metalplugctl acts as the helper by whose name it is
// started. The packages have scripts instead.
var programs = []struct{ dir, path string }{
	{"cmd/metalplugd", "/usr/sbin/metalplugd"},
	{"cmd/metalplugctl", "/usr/bin/metalplugctl"},
	{"cmd/metalplugctl", "/usr/libexec/metalplug/metalplug-reset"},
	{"cmd/metalplug-holders", "/usr/libexec/metalplug/metalplug-holders"},
	{"cmd/metalplugctl", "/usr/libexec/metalplug/metalplug-unit"},
}

// daemonUnit runs the daemon under systemd, but without a sandbox. Other tests use the unit of the package.
const daemonUnit = `[Unit]
Description=metalplugd under test

[Service]
Type=notify
ExecStart=/usr/sbin/metalplugd
ExecReload=/bin/kill -HUP $MAINPID
TimeoutStartSec=180
`

// InstallDaemon copies the programs of this checkout and a configuration to the machine. It starts nothing.
func (m *Machine) InstallDaemon(config string) {
	m.t.Helper()
	root, err := repository()
	if err != nil {
		m.t.Fatal(err)
	}
	for _, p := range programs {
		if files, _ := filepath.Glob(filepath.Join(root, p.dir, "*.go")); len(files) > 0 {
			m.Push(Build(m.t, p.dir, false), p.path)
		}
	}
	m.Write("/etc/metalplug/metalplug.toml", config)
	m.Write("/etc/systemd/system/metalplugd.service", daemonUnit)
	m.Run("systemctl", "daemon-reload")
}

// StartDaemon starts metalplugd and returns when it is ready.
func (m *Machine) StartDaemon() {
	m.t.Helper()
	if r := m.Try("systemctl", "start", "metalplugd"); r.Code != 0 {
		m.t.Fatalf("start metalplugd: %s\n%s", strings.TrimSpace(r.Stderr), m.Journal("metalplugd", "100"))
	}
}

// StopDaemon stops metalplugd, which must end without an error.
func (m *Machine) StopDaemon() {
	m.t.Helper()
	m.Run("systemctl", "stop", "metalplugd")
	if result := m.Run("systemctl", "show", "--value", "--property", "Result", "metalplugd"); result != "success" {
		m.t.Errorf("stop metalplugd: its result is %q", result)
	}
}

// Journal returns the end of a unit's journal.
func (m *Machine) Journal(unit, lines string) string {
	m.t.Helper()
	return m.Try("journalctl", "--unit", unit, "--output", "short-precise", "--no-pager", "--lines", lines).Stdout
}
