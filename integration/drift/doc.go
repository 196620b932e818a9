// SPDX-License-Identifier: Apache-2.0

// Package drift holds the properties that no compiler checks, such as which package may import which, and that the files
// outside of Go name every class and node. It has only tests.
package drift
