// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	_ "embed"
	"maps"
	"strings"
	"sync"
)

//go:embed metalplug.catalog
var catalog string

// MessageIDs returns the MESSAGE_ID of each line of the log that has one, by its message. These are all errors, and the
// lines after which an operator may have to act, or may want to look for later. metalplug.catalog has and explains each
// (journalctl -x). An ID never changes and is never given to another message.
func MessageIDs() map[string]string { return maps.Clone(messageIDs()) }

// messageIDs reads them from the lines "-- ID" and "# MESSAGE" that begin an entry of the catalog.
var messageIDs = sync.OnceValue(func() map[string]string {
	ids := make(map[string]string)
	for _, entry := range strings.Split(catalog, "\n-- ")[1:] {
		id, rest, _ := strings.Cut(entry, "\n# ")
		message, _, _ := strings.Cut(rest, "\n")
		ids[message] = id
	}
	return ids
})
