// SPDX-License-Identifier: Apache-2.0

// Package drift tests properties that the compiler does not check, such as import rules, and that files outside of Go
// name every class and node. It has only tests.
package drift
