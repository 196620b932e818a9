//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"errors"
	"strings"
	"time"
)

// Reboot restarts the machine's system and returns when all units are started. Disks keep their content, and slots
// their drives. Running commands and their streams end.
func (m *Machine) Reboot() {
	m.t.Helper()
	before := m.bootID()
	// By default, QEMU exits at a reboot of the machine, as it does after a kernel panic.
	m.onReboot("reset")
	defer m.onReboot("shutdown")
	m.Run("systemctl", "reboot", "--no-block")
	m.Eventually("reboot", m.boot/m.slower, func() bool {
		id := m.bootID()
		return id != "" && id != before
	})
	m.guest.forget(errors.New("the machine was rebooted"))
	if err := m.waitBooted(time.Now().Add(m.boot)); err != nil {
		m.t.Fatalf("reboot: %v", err)
	}
}

// bootID returns the kernel's ID of this boot, or "" while the machine does not answer.
func (m *Machine) bootID() string {
	r, err := m.guest.run(nil, 2*time.Second, "cat", "/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(r.Stdout)
}

func (m *Machine) onReboot(action string) {
	m.t.Helper()
	if err := m.qmp.Execute("set-action", map[string]any{"reboot": action}, nil); err != nil {
		m.t.Fatal(err)
	}
}
