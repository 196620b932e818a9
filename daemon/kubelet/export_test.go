// SPDX-License-Identifier: Apache-2.0

package kubelet

import "time"

// Age makes the answers of h about noted devices older.
func (h *Holders) Age(by time.Duration) {
	for id, last := range h.noted {
		last.at = last.at.Add(-by)
		h.noted[id] = last
	}
}
