// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// file is a configuration file that is being read.
type file struct {
	name  string
	tree  map[string]any // the parsed file
	lines lineIndex
	// all keys that a file can contain, by their spelling; shared by all files
	known    map[string]toml.Key
	unknown  []place // keys in the file that are not in known
	problems Problems
}

// spelt returns the path of a key as it is written in a file.
func spelt(path toml.Key) string { return unnumbered(path).String() }

// unnumbered returns the path of a key without the index of the resource table.
func unnumbered(path toml.Key) toml.Key {
	if len(path) > 1 && path[0] == resourceKey {
		return append(toml.Key{resourceKey}, path[2:]...)
	}
	return path
}

// reportUnknown reports the unknown keys, each with the known key that was probably meant. It must be called last, when
// all known keys have been read.
func (f *file) reportUnknown() {
	for _, p := range f.unknown {
		switch meant := f.meant(unnumbered(p.path)); {
		case meant == "":
			p.reportf("unknown key; valid keys are %s", strings.Join(f.beside(unnumbered(p.path)), ", "))
		case strings.Contains(meant, " "):
			p.reportf("unknown key; %s", meant)
		case meant == p.path[len(p.path)-1]: // the known key belongs above the first table
			p.reportf("unknown key; write %s above the first table", meant)
		default:
			p.reportf("unknown key; did you mean %s?", meant)
		}
	}
}

// foreign lists keys of other programs that users may try here, with their replacements.
var foreign = map[string]string{
	"log_level": "use metalplugd --log-level", "loglevel": "use metalplugd --log-level", "log": "use metalplugd --log-level", "metrics": "metalplugd-metrics.socket",
	"replicas": "shares", "sharing": "shares", "time_slicing": "shares", "devices": "match.METALPLUG_ID", "device_ids": "match.METALPLUG_ID",
	"kubelet_root": "device_plugins", "root_dir": "paths.device_plugins", "scrub": "resource.reset.scrub", "method": "resource.reset.method",
	"enabled": disable, "enable": disable, "disabled": disable, "health": health, "health_check": health, "include": include, "import": include,
	"priority": "the first [[resource]] that matches takes a device, so write this one before the others",
}

// Remedies for keys that have no replacement.
const (
	disable = "to turn off a resource, remove its table; for a built-in one, write builtin = false and a [[resource]] for each of the others"
	health  = "remove it, since metalplug always checks the health of a device"
	include = "write other files as conf.d/NAME.toml next to this file"
)

// beside returns the known keys of the table that contains an unknown key.
func (f *file) beside(path toml.Key) (keys []string) {
	for _, known := range f.known {
		if last := len(known) - 1; len(path) == len(known) && slices.Equal(known[:last], path[:last]) {
			keys = append(keys, known[last])
		}
	}
	slices.Sort(keys)
	return keys
}

// meant returns the known key that is most similar to an unknown one, or "". It first tries a key in the same table with a
// similar or longer name. After that, it tries a key with the same name in another table, and finally the replacement in the
// map foreign.
func (f *file) meant(path toml.Key) string {
	name := strings.ToLower(path[len(path)-1])
	if near := similar(name, f.beside(path)); near != "" {
		return near
	}
	for _, key := range slices.Backward(slices.Sorted(maps.Keys(f.known))) {
		if known := f.known[key]; known[len(known)-1] == name {
			return key
		}
	}
	return foreign[strings.ReplaceAll(name, "-", "_")]
}
