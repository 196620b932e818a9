// SPDX-License-Identifier: Apache-2.0

// Package faults tests the guarantees of metalplug. It plays random sequences of plugging, failing, allocating and
// restarting. At each step, the tests remove, stop or fill up a part, or give it a wrong answer.
//
// The simulated device manager detects everything that would crash a kubelet. The simulated hardware detects when a pod
// gets the data of another pod.
package faults
