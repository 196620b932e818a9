// SPDX-License-Identifier: Apache-2.0

// Package sandbox starts the shipped units under the systemd of two Debian releases, in containers of this machine, and
// finds out what a program in the sandbox of each unit reaches. docs/threat-model.md has the list that it is compared with.
package sandbox
