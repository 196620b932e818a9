// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
)

// Default returns the configuration that applies if there are no files.
func Default() Config {
	c := staticDefaults()
	c.apply("/")
	return c
}

// staticDefaults returns the defaults that do not depend on the values of other keys.
func staticDefaults() (c Config) {
	for _, path := range c.pathKeys() {
		*path.to = strings.Trim(exampleValues[path.key], `"`)
	}
	return c
}

// builtin lists the built-in resources as they would be written in a file. Most of them have the names that vendors' plugins use,
// so that existing pods need no change.
var builtin = []map[string]any{
	{"name": "nvidia.com/gpu", "class": "gpu", "match": map[string]any{"PCI_ID": "10DE:*"}},
	{"name": "amd.com/gpu", "class": "gpu", "match": map[string]any{"PCI_ID": "1002:*"}},
	{"name": "gpu.intel.com/i915", "class": "gpu", "match": map[string]any{"PCI_ID": "8086:*", "DRIVER": "i915"}},
	{"name": "gpu.intel.com/xe", "class": "gpu", "match": map[string]any{"PCI_ID": "8086:*", "DRIVER": "xe"}},
	{"name": "intel.com/fpga", "class": "fpga", "match": map[string]any{"DEVNAME": "/dev/dfl-port.*|/dev/intel-fpga-port.*"}},
	{"name": "xilinx.com/fpga", "class": "fpga", "match": map[string]any{"DRIVER": "xocl"}},
	{"name": "metalplug.io/infiniband", "class": "infiniband"},
	{"name": nvme, "class": "nvme"},
}

// nvme is a built-in resource that metalplugd ignores unless a file contains the resource and sets its scrub.
const nvme = "metalplug.io/nvme"

// builtinValues returns the built-in values for a resource name, or nil.
func builtinValues(name string) map[string]any {
	for _, values := range builtin {
		if values["name"] == name {
			return values
		}
	}
	return nil
}

// builtinResource returns the resource with the given built-in values.
func builtinResource(values ...map[string]any) Resource {
	t := &table{}
	for _, v := range values {
		t.merge(place{}, v)
	}
	return resource(t)
}

// BuiltinRules returns the rules of all built-in resources, including those that metalplugd ignores unless a file contains them.
func BuiltinRules() []device.Rule {
	none := map[string]any{"reset": map[string]any{"scrub": None}}
	var rules []device.Rule
	for _, values := range builtin {
		rules = append(rules, builtinResource(values, none).Rule())
	}
	return rules
}
