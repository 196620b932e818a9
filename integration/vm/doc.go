//go:build integration

// SPDX-License-Identifier: Apache-2.0

// Package vm boots a complete machine for a test. It has Debian 13 with its kernel, systemd and udevd in an emulated
// PC. The test plugs and unplugs its hardware while metalplugd runs in it.
//
// Boot starts a machine, Run and Start run commands in it, PlugNVMe and Unplug change its hardware. All waits have a
// deadline, and there are no sleeps.
package vm
