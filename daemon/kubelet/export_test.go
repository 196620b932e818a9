// SPDX-License-Identifier: Apache-2.0

package kubelet

import "time"

// Age makes the answers of h about remembered devices older.
func (h *Holders) Age(by time.Duration) {
	for id, said := range h.remembered {
		said.at = said.at.Add(-by)
		h.remembered[id] = said
	}
}
