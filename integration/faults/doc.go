// SPDX-License-Identifier: Apache-2.0

// Package faults holds the tests of what must never happen, whatever else does: random sequences of plugging, failing,
// allocating and restarting, and each part taken away, stopped, filled up or answered with nonsense at each step.
//
// Above the daemon is a device manager that notices what would crash the kubelet's, below it is hardware that notices
// who is given what another has left behind.
package faults
