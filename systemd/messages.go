// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	_ "embed"
	"strings"
	"sync"
)

//go:embed metalplug.catalog
var catalog string

// MessageIDs maps log messages to their MESSAGE_ID. Every message at the level error has an ID, and so does every message that an
// operator may have to act on or search for. metalplug.catalog lists and explains the IDs (journalctl -x). An ID never changes
// and is never reused for another message. Each entry in the catalog begins with the lines "-- ID" and "# MESSAGE". Callers must
// not change the map.
var MessageIDs = sync.OnceValue(func() map[string]string {
	ids := make(map[string]string)
	for _, entry := range strings.Split(catalog, "\n-- ")[1:] {
		id, rest, _ := strings.Cut(entry, "\n# ")
		message, _, _ := strings.Cut(rest, "\n")
		ids[message] = id
	}
	return ids
})
