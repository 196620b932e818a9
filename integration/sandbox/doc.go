// SPDX-License-Identifier: Apache-2.0

// Package sandbox starts the shipped units under the systemd of two Debian releases, in containers, and finds out which
// parts of the node a program in the sandbox of each unit can reach. It compares the result with the lists in
// docs/threat-model.md.
package sandbox
