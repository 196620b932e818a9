//go:build integration

// SPDX-License-Identifier: Apache-2.0

// Package vm boots a complete machine for a test. The machine is an emulated PC with Debian 13, its kernel, systemd and
// udevd. The test plugs and unplugs hardware of the machine while metalplugd runs there.
//
// Boot starts a machine, Run and Start run commands in it, PlugNVMe and Unplug change its hardware. All waits have a
// deadline.
package vm
