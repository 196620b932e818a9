// SPDX-License-Identifier: Apache-2.0

// Package drift holds what no compiler holds: who may import whom, and that what lies outside Go names every class and
// node. It has only tests.
package drift
