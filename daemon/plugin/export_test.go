// SPDX-License-Identifier: Apache-2.0

package plugin

// RemoveStale is removeStale, for the tests.
var RemoveStale = removeStale
