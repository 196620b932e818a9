// SPDX-License-Identifier: Apache-2.0

// Package faults holds the tests of the guarantees. They play random sequences of plugging, failing, allocating and
// restarting. At each step, one part is taken away, stopped, filled up or answered with nonsense.
//
// Above the daemon is a device manager that notices any crash of the kubelet's. Below it is hardware that notices when a
// pod is given the data of another.
package faults
