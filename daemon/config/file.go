// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// file is a configuration file while it is being read.
type file struct {
	name     string
	tree     map[string]any // the parsed file
	lines    lineIndex
	known    map[string]toml.Key // all keys that a file can have, by their spelling, shared by all files
	unknown  []place             // keys of the file that are not in known
	problems Problems
}

// spelt returns the path of a key in the spelling of the file.
func spelt(path toml.Key) string { return unnumbered(path).String() }

// unnumbered returns the path of a key without the number of its resource.
func unnumbered(path toml.Key) toml.Key {
	if len(path) > 1 && path[0] == resourceKey {
		return append(toml.Key{resourceKey}, path[2:]...)
	}
	return path
}

// reportUnknown reports the unknown keys, each with the known key that was probably meant. It must be called last, when
// all known keys have been requested.
func (f *file) reportUnknown() {
	for _, p := range f.unknown {
		switch meant := f.meant(unnumbered(p.path)); {
		case meant == "":
			p.reportf("unknown key; man metalplug.toml lists the keys")
		case meant == p.path[len(p.path)-1]: // this key does not belong to a table
			p.reportf("unknown key; write %s above the first table", meant)
		default:
			p.reportf("unknown key; did you mean %s?", meant)
		}
	}
}

// foreign has keys of other programs that users may try here, with their replacements.
var foreign = map[string]string{
	"log_level": "metalplugd --log-level", "loglevel": "metalplugd --log-level", "log": "metalplugd --log-level", "metrics": "metalplugd-metrics.socket",
	"replicas": "shares", "sharing": "shares", "time_slicing": "shares", "devices": "match.METALPLUG_ID", "device_ids": "match.METALPLUG_ID",
	"kubelet_root": "device_plugins", "root_dir": "paths.device_plugins", "scrub": "resource.reset.scrub", "method": "resource.reset.method",
}

// meant returns the known key that is most similar to an unknown one, or "". It tries a key of the same table with a
// similar or longer name, then one of another table with the same name, then the replacement of a foreign key.
func (f *file) meant(path toml.Key) string {
	last := len(path) - 1
	name := strings.ToLower(path[last])
	elsewhere := foreign[strings.ReplaceAll(name, "-", "_")]
	for edits := range min(2, len(name)/2) + 1 {
		for _, key := range slices.Sorted(maps.Keys(f.known)) {
			known := f.known[key]
			if known[len(known)-1] == name {
				elsewhere = key
			}
			if len(known) == len(path) && slices.Equal(known[:last], path[:last]) && (like(name, known[last], edits) || abbreviates(name, known[last])) {
				return known[last]
			}
		}
	}
	return elsewhere
}

// abbreviates reports whether a is an abbreviation of b, with or without a plural s, such as "perms" of "permissions".
func abbreviates(a, b string) bool {
	return len(a) > 2 && strings.HasPrefix(b, strings.TrimSuffix(a, "s"))
}

// like reports whether a can be changed to b by inserting, removing or replacing at most the given number of letters.
func like(a, b string, edits int) bool {
	switch {
	case a == b:
		return true
	case a == "" || b == "":
		return len(a)+len(b) <= edits
	case a[0] == b[0]:
		return like(a[1:], b[1:], edits)
	}
	return edits > 0 && (like(a[1:], b, edits-1) || like(a, b[1:], edits-1) || like(a[1:], b[1:], edits-1))
}
