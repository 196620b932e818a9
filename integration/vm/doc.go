//go:build integration

// SPDX-License-Identifier: Apache-2.0

// Package vm boots a whole machine for a test. It is Debian 13 with its own kernel, systemd and udevd in an emulated PC,
// whose hardware the test plugs and unplugs while metalplugd runs in it.
//
// Boot starts a machine, Run and Start run commands in it, PlugNVMe and Unplug change its hardware. All waits have a
// deadline, and none is a sleep.
package vm
