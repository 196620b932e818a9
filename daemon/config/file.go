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
	name      string
	tree      map[string]any // the parsed file
	resources any            // the value of the key resource, which is not in tree
	lines     lineIndex
	problems  Problems
}

// spelling returns the path of a key as it is written in a file.
func spelling(path toml.Key) string { return withoutIndex(path).String() }

// withoutIndex returns the path of a key without the index of the resource table.
func withoutIndex(path toml.Key) toml.Key {
	if len(path) > 1 && path[0] == resourceKey {
		return append(toml.Key{resourceKey}, path[2:]...)
	}
	return path
}

// checkKnown reports a key that is not in the map exampleValues, and suggests a known key. checkKnown ignores keys in the tables
// match, exclude and env, because these keys are names of properties and variables.
func (p place) checkKnown() {
	path := withoutIndex(p.path)
	if _, ok := exampleValues[path.String()]; ok {
		return
	}
	siblings := siblingKeys(path)
	if len(siblings) == 0 {
		return
	}
	switch meant := suggestKey(path, siblings); {
	case meant == "":
		p.reportf("unknown key; valid keys are %s", strings.Join(siblings, ", "))
	case strings.Contains(meant, " "):
		p.reportf("unknown key; %s", meant)
	case meant == path[len(path)-1]: // the known key belongs above the first table
		p.reportf("unknown key; write %s above the first table", meant)
	default:
		p.reportf("unknown key; did you mean %s?", meant)
	}
}

// keyReplacements lists keys of other programs that users may try here, with their replacements.
var keyReplacements = map[string]string{
	"log_level": "use metalplugd --log-level", "loglevel": "use metalplugd --log-level", "log": "use metalplugd --log-level", "metrics": "metalplugd-metrics.socket",
	"replicas": "shares", "sharing": "shares", "time_slicing": "shares", "devices": "match.METALPLUG_ID", "device_ids": "match.METALPLUG_ID",
	"kubelet_root": "device_plugins", "root_dir": "paths.device_plugins", "scrub": "resource.reset.scrub", "method": "resource.reset.method",
	"enabled": disableRemedy, "enable": disableRemedy, "disabled": disableRemedy, "health": healthRemedy, "health_check": healthRemedy, "include": includeRemedy, "import": includeRemedy,
	"priority": "the first [[resource]] that matches takes a device, so write this one before the others",
}

// Remedies for keys that have no replacement.
const (
	disableRemedy = "to turn off a resource, remove its table; for a built-in one, write builtin = false and a [[resource]] for each of the others"
	healthRemedy  = "remove it, since metalplug always checks the health of a device"
	includeRemedy = "write other files as conf.d/NAME.toml next to this file"
)

// siblingKeys returns the known keys of the table that contains the key at path.
func siblingKeys(path toml.Key) (names []string) {
	table := path[:len(path)-1].String()
	for _, key := range slices.Sorted(maps.Keys(exampleValues)) {
		if dot := strings.LastIndex(key, "."); key[:max(0, dot)] == table {
			names = append(names, key[dot+1:])
		}
	}
	return names
}

// suggestKey returns the known key that is most similar to an unknown one, or "". suggestKey first searches the list siblings,
// which contains the keys of the same table, for a similar or longer name. Next, it searches the other tables for the same name.
// Finally, it tries the map keyReplacements.
func suggestKey(path toml.Key, siblings []string) string {
	name := strings.ToLower(path[len(path)-1])
	if near := similar(name, siblings); near != "" {
		return near
	}
	for _, key := range slices.Backward(slices.Sorted(maps.Keys(exampleValues))) {
		if key == name || strings.HasSuffix(key, "."+name) {
			return key
		}
	}
	return keyReplacements[strings.ReplaceAll(name, "-", "_")]
}
