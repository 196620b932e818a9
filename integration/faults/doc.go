// SPDX-License-Identifier: Apache-2.0

// Package faults tests the guarantees of metalplug. It plays random sequences of plugging, failing, allocating and
// restarting. At each step a part fails: it is removed, stopped or full, or gets a wrong answer.
//
// The device manager above the daemon detects everything that would crash a kubelet. The hardware below the daemon
// detects when a pod gets the data of another.
package faults
